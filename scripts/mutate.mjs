// Removes one guard at a time in a copy of the tree and runs the tests that must notice. A survivor fails the run, and so does what is no code any more: that any test notices.
import { spawnSync } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { runnerImport } from 'vite'
import { mutations } from '../test/mutations/index.mjs'

const root = join(import.meta.dirname, '..')
const wanted = process.argv.slice(2)
const chosen = mutations.filter(({ name, file }) => wanted.every((word) => `${name} ${file}`.includes(word)))
for (const { name, file, from, to } of chosen) {
  const source = readFileSync(join(root, file), 'utf8')
  if (source.replace(from, () => to) === source)
    throw new Error(`"${name}": ${file} does not contain ${from}`)
}
const copy = mkdtempSync(join(tmpdir(), 'dibs-mutate-'))
for (const part of [
  'src',
  'test',
  'examples',
  'scripts',
  'sql',
  'build',
  'dist',
  'package.json',
  'tsconfig.json',
  'tsconfig.build.json',
  'vitest.config.ts',
]) {
  cpSync(join(root, part), join(copy, part), { recursive: true })
}
symlinkSync(join(root, 'node_modules'), join(copy, 'node_modules'))

const survivors = []
const bin = (name) => join(root, 'node_modules/.bin', name)
// One server for all: to make one takes as long as most tests.
const { module } = await runnerImport(join(root, 'test/postgres-server.ts'))
const server = await module.startPostgres()
const env = { ...process.env, TEST_DATABASE_URL: server.url, DIBS_TEST_ALL: '1' }

for (const { name, file, from, to, tests } of chosen) {
  const path = join(copy, file)
  const source = readFileSync(path, 'utf8')
  const mutated = source.replace(from, () => to)
  writeFileSync(path, mutated)
  build()
  const { stdout, status, error } = spawnSync(
    bin('vitest'),
    ['run', '--project', 'direct*', '--project', 'processes', '--reporter', 'json', '--bail', '1', ...tests],
    { cwd: copy, env, encoding: 'utf8', maxBuffer: 1 << 28, timeout: 300_000 },
  )
  writeFileSync(path, source)
  const { killer, isBroken } = status === 0 ? {} : findFailure(stdout)
  if (!killer || isBroken) survivors.push(name)
  // Cut off, its tests have said nothing.
  const verdict = isBroken ? 'NO CODE ' : killer ? 'killed  ' : error ? 'TOO LONG' : 'SURVIVED'
  console.log(`${verdict}  ${name}${killer ? `\n            by: ${killer}` : ''}`)
}
await server.stop()
rmSync(copy, { recursive: true, force: true })
console.log(`${chosen.length - survivors.length} of ${chosen.length} killed`)
process.exitCode = survivors.length > 0 ? 1 : 0

/** Processes that tests start run what is built. It is built also where types complain, as they do of some mutations. */
function build() {
  spawnSync(process.execPath, ['scripts/generate-migrations.mjs'], { cwd: copy })
  spawnSync(bin('tsc'), ['-p', 'tsconfig.build.json'], { cwd: copy })
  spawnSync(process.execPath, ['scripts/bundle.mjs'], { cwd: copy })
}

function findFailure(stdout) {
  try {
    const { testResults } = JSON.parse(stdout.slice(stdout.indexOf('{')))
    if (testResults.length === 0) return {} // nobody was there to notice
    const failed = testResults
      .flatMap(({ assertionResults }) => assertionResults)
      .find(({ status }) => status === 'failed')
    const message = testResults.find(({ status }) => status === 'failed')?.message
    return {
      killer: failed?.fullName ?? message?.split('\n')[0] ?? 'the run itself',
      isBroken: /syntax error at |SyntaxError|Transform failed|is not a function|ReferenceError/.test(
        failed?.failureMessages.join() ?? message,
      ),
    }
  } catch {
    return { killer: 'the run itself (a crash or a hang)' }
  }
}
