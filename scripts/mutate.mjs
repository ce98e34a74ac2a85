// Removes one guard of the contract at a time (test/mutations) and runs the tests that must notice.
//   npm run mutate                                  all of them
//   npm run mutate -- lock fence                    those whose name or file contains both words
//   npm run mutate -- lock.guard-fence once.hold    these
//   npm run mutate -- --changed=main~5              those in files that differ from that commit (default: main)
// A guard whose removal no test notices fails the run, and so does a replacement that does not compile.
import { execFileSync, spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runnerImport } from 'vite'
import { findAllPlaces } from './mutate/markers.mjs'
import { checkMutations, findTests, readMutations } from './mutate/read-mutations.mjs'
import { findBroken, judge, runMutations } from './mutate/run-mutations.mjs'

/** How long a mutation may take in all, and one test of it, which a mutation may make wait for ever. */
const TOTAL_TIMEOUT_MS = 300_000
const TEST_TIMEOUT_MS = 30_000

const root = join(import.meta.dirname, '..')
const bin = (name) => join(root, 'node_modules/.bin', name)
const words = process.argv.slice(2).filter((word) => !word.startsWith('--'))
const since = process.argv.find((word) => word.startsWith('--changed'))

const mutations = await readMutations(root)
const found = findAllPlaces(root)
const chosen = choose()
const asked = chosen.map(({ mutation }) => mutation)
const problems = checkMutations(root, asked, {
  places: found.places.filter(({ guard }) => asked.some((mutation) => mutation.guard === guard)),
  problems: found.problems,
})
if (problems.length > 0) {
  console.log(problems.join('\n'))
  process.exit(1)
}
const copy = makeCopy()
// One server for all: starting one takes as long as most tests.
const { module } = await runnerImport(join(root, 'test/postgres-server.ts'))
const server = await module.startPostgres()
try {
  const results = runMutations(copy, chosen, { build, test, report })
  console.log(`${results.killed.length} of ${chosen.length} killed`)
  for (const verdict of ['survived', 'does not compile', 'timed out'])
    if (results[verdict].length > 0) console.log(`${verdict}: ${results[verdict].join(', ')}`)
  process.exitCode = results.killed.length < chosen.length ? 1 : 0
} finally {
  await server.stop()
  rmSync(copy, { recursive: true, force: true })
}

function choose() {
  const changed =
    since &&
    execFileSync('git', ['diff', '--name-only', since.split('=')[1] ?? 'main'], {
      cwd: root,
      encoding: 'utf8',
    }).split('\n')
  return mutations
    .map((mutation) => ({ mutation, place: found.places.find(({ guard }) => guard === mutation.guard) }))
    .filter(({ place }) => !changed || changed.includes(place?.file))
    .filter(
      ({ mutation: { guard }, place }) =>
        words.includes(guard) || words.every((word) => `${guard} ${place?.file}`.includes(word)),
    )
}

function makeCopy() {
  const folder = mkdtempSync(join(tmpdir(), 'dibs-mutate-'))
  const parts = ['src', 'test', 'examples', 'scripts', 'sql', 'build', 'dist']
  const settings = ['package.json', 'tsconfig.json', 'tsconfig.build.json', 'vitest.config.ts']
  for (const part of [...parts, ...settings])
    cpSync(join(root, part), join(folder, part), { recursive: true })
  symlinkSync(join(root, 'node_modules'), join(folder, 'node_modules'))
  return folder
}

/** Processes that tests start run what is built. Wrong types do not matter: some mutations leave such. */
function build() {
  spawnSync(process.execPath, ['scripts/generate-migrations.mjs'], { cwd: copy })
  const { stdout } = spawnSync(bin('tsc'), ['-p', 'tsconfig.build.json'], { cwd: copy, encoding: 'utf8' })
  spawnSync(process.execPath, ['scripts/bundle.mjs'], { cwd: copy })
  return findBroken(stdout)
}

function test(tests) {
  const projects = ['behavior', 'processes', 'adapters', 'proofs', 'storms'].flatMap((name) => [
    '--project',
    name,
  ])
  return judge(
    spawnSync(
      bin('vitest'),
      [
        ...['run', ...projects, '--reporter', 'json', '--bail', '1'],
        ...['--testTimeout', String(TEST_TIMEOUT_MS), ...findTests(copy, tests)],
      ],
      {
        cwd: copy,
        env: { ...process.env, TEST_DATABASE_URL: server.url, DIBS_TEST_DEEP: '1' },
        encoding: 'utf8',
        maxBuffer: 1 << 28,
        timeout: TOTAL_TIMEOUT_MS,
      },
    ),
  )
}

function report(guard, verdict, details) {
  console.log(`${verdict.padEnd(16)} ${guard}${details ? `\n${' '.repeat(17)}${details}` : ''}`)
}
