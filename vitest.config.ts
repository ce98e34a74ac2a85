import { readdirSync, readFileSync } from 'node:fs'
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { defineConfig } from 'vitest/config'
import { requireComponent } from './test/components.js'
import { external, loadBuild } from './test/load-build.js'
import { pgBouncerVersion } from './test/pgbouncer.js'
import { postgres14, systemPostgres } from './test/postgres-installations.js'

// The name of a test file tells what the test is for, and that decides where it runs. See "Tests" in CONTRIBUTING.md.
//
//   npm test    behavior
//   .ci/run     npm test, then processes and adapters, the matrix, proofs, storms, browser, and real-time alone at the end

/** On a busy machine a new connection may take seconds. */
process.env.DIBS_PATIENCE_MS ??= '20000'

const anywhere = '{src,scripts,examples}/**/'
const ofKind = (...kinds: string[]): string[] => kinds.map((kind) => `${anywhere}*.${kind}.test.ts`)

const kinds = {
  processes: ofKind('process'),
  browser: ofKind('browser'),
  proofs: ofKind('explore', 'crash', 'cut'),
  storms: ofKind('storm'),
  adapters: ofKind('adapter'),
}

const common = {
  server: { deps: { external } },
  setupFiles: ['test/leaks.ts'],
  // A test that hangs hangs for ever, and a busy machine may stand still for seconds.
  testTimeout: 120_000,
  hookTimeout: 120_000,
  expect: { poll: { timeout: 60_000 } },
}

interface Settings {
  readonly include: string[]
  readonly exclude?: string[]
  readonly env?: Record<string, string>
  readonly maxWorkers?: number
  /** Projects with a higher number run when those with a lower one are done. */
  readonly groupOrder: number
  /** False: the test files of one worker share their modules, which saves a quarter of the time. */
  readonly isolate?: boolean
}

const project = (name: string, { groupOrder, ...settings }: Settings) => ({
  plugins: [loadBuild],
  test: { ...common, name, ...settings, sequence: { groupOrder } },
})

/** Most tests of these kinds wait for something else: leases, other processes, servers that start. */
const many = 2 * availableParallelism() + 1

const behavior = project('behavior', {
  include: [`${anywhere}*.test.ts`],
  exclude: Object.values(kinds).flat(),
  isolate: false,
  maxWorkers: many,
  groupOrder: 0,
})

const others = [
  project('processes', { include: kinds.processes, maxWorkers: many, groupOrder: 1 }),
  project('adapters', { include: kinds.adapters, maxWorkers: many, groupOrder: 1 }),
  project('proofs', { include: kinds.proofs, maxWorkers: availableParallelism() + 1, groupOrder: 2 }),
  // Eight processes each.
  project('storms', { include: kinds.storms, maxWorkers: 1, groupOrder: 3 }),
  project('browser', { include: kinds.browser, maxWorkers: availableParallelism(), groupOrder: 4 }),
]

const findTestsWith = (word: string): string[] =>
  readdirSync(join(import.meta.dirname, 'src'), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.test.ts'))
    .map((file) => join('src', file))
    .filter((file) => readFileSync(file, 'utf8').includes(word))

/** The tests of behavior and of adapters that need a server, again on another one. What reaches the server in a way of its own is left out. */
const matrix = (
  name: string,
  env: Record<string, string>,
  alsoExclude: string[] = [],
  include = ['src/**/*.test.ts'],
) =>
  project(`matrix-${name}`, {
    include,
    exclude: [
      ...ofKind('unit', 'types', 'process', 'browser', 'explore', 'crash', 'cut', 'storm'),
      'src/{cli,server,http}/**',
      'src/testing/{page,explore/report,crash/report}/**',
      ...alsoExclude,
    ],
    env,
    isolate: false,
    maxWorkers: many,
    groupOrder: 5,
  })

/** The oldest server that must work, and the one of the distribution's packages. */
function findMatrix() {
  if (process.env.TEST_DATABASE_URL) return []
  const found = []
  const hasOldest = requireComponent(
    'PostgreSQL 14',
    postgres14,
    'the run on the oldest server that must work',
  )
  const throughPgBouncer = requireComponent('PgBouncer', pgBouncerVersion(), 'the run through it')
  // PgBouncer stands before the oldest server, so that server also runs all other tests.
  const withoutPgBouncer = throughPgBouncer
    ? ['src/testing/**/*.test.ts', ...findTestsWith('viaPgBouncer')]
    : undefined
  if (hasOldest) found.push(matrix('postgres-14', { DIBS_TEST_ON: 'postgres-14' }, [], withoutPgBouncer))
  if (requireComponent('PostgreSQL of the distribution', systemPostgres?.major, 'the run on it'))
    found.push(matrix('postgres-system', { DIBS_TEST_ON: 'postgres-system' }))
  if (throughPgBouncer)
    found.push(
      matrix(
        'pgbouncer',
        { DIBS_TEST_VIA: 'pgbouncer', ...(hasOldest ? { DIBS_TEST_ON: 'postgres-14' } : {}) },
        // The explorer and the crash loop must know which backend serves whom.
        ['src/testing/**'],
      ),
    )
  return found
}

/** All files with a test that is marked `realTime`: judged by milliseconds, so it runs alone. */
const realTime = project('real-time', { include: findTestsWith('realTime'), maxWorkers: 1, groupOrder: 6 })

export default defineConfig({
  test: {
    globalSetup: ['test/global-setup.ts'],
    // Many tests make things fail, and each failure is a line on stderr.
    silent: 'passed-only',
    reporters: ['default', './test/run-summary.ts'],
    tags: [{ name: 'real-time', description: 'judged by milliseconds: runs alone' }],
    projects: [behavior, ...others, ...findMatrix(), realTime],
  },
})
