import { availableParallelism } from 'node:os'
import { defineConfig } from 'vitest/config'
import { requireComponent } from './test/components.js'
import { pgBouncerVersion } from './test/pgbouncer.js'
import { postgres14, systemPostgres } from './test/postgres-installations.js'

/** On a busy machine a new connection may take seconds. */
process.env.DIBS_PATIENCE_MS ??= '20000'

const common = {
  setupFiles: ['test/leaks.ts'],
  // What hangs does so for ever, and a busy machine may stand still for seconds.
  testTimeout: 60_000,
  hookTimeout: 60_000,
  expect: { poll: { timeout: 30_000 } },
}

/** Long ones, which run with the soak; and all of them where guards are removed to see who notices. */
const withTheSoak = process.env.DIBS_TEST_ALL
  ? []
  : [
      'src/postgres/embedded/{failures,keeper.abuse,keeper.kill,keeper.obstacles,users}.test.ts',
      'src/testing/explore/reduce/{corpus,hostile,self-check,classes}.test.ts',
      // What they look at has not changed for long, and takes a while.
      'src/claims/{kv,rate,quota,quota.many,singleton,acquire,acquire-holds,acquire-rates}.explore.test.ts',
      'src/claims/{once,acquire}.{crash,cut}.test.ts',
      'src/tables/{rows,aggregate,monitor,claim-rows}.{explore,crash}.test.ts',
      'src/locks/{lock,single-flight}.crash.test.ts',
      'src/ops/maintenance.crash.test.ts',
      'src/locks/{row-lock,election,single-flight}.explore.test.ts',
      'src/testing/explore/{acceptance,hermitage}.test.ts',
      'src/testing/explore/stage/libraries.test.ts',
      'src/testing/{explore,crash}/report/page/page.test.ts',
      'src/testing/explore/report/anomaly.test.ts',
      'examples/races/crashes/crashes.test.ts',
      // The same as over Express, and as Fastify by itself.
      'src/http/nest-fastify.http.test.ts',
    ]

const processes = [
  'src/postgres/embedded/**/*.test.ts',
  'src/http/*.http.test.ts',
  'src/cli/serve.test.ts',
  'src/dibs.test.ts',
  'src/testing/crash/{process,server}.test.ts',
]

/** They wait most of the time: for leases, limits and pauses that are real. */
const patient = [
  'src/locks/{lock,lock-loss,lock-guard,lock-full-pool,lock-keeper,held-lock,locks,bell}.test.ts',
  'src/locks/{flight-loss,single-flight,election,row-lock-waits}.test.ts',
  'src/claims/{once-lease,once-leased,once-joined,acquire-holds,acquire-leased,acquire-edges}.test.ts',
  'src/claims/{singleton-leased,quota.joined,operation}.test.ts',
  'src/claims/*.cut.test.ts',
  'src/jobs/{transactional,worker,outages,stop,outcomes,incident,quiet,cut}.test.ts',
  'src/jobs/{bots,poison,strays,shutdown,worker-breaker,job-commit,slow-look,heartbeat-thread}.test.ts',
  'src/tables/{aggregate,aggregate-verify,changing-table}.test.ts',
  'src/postgres/{transaction,migrations/migrate}.test.ts',
  'src/testing/crash/{crash,zombie}.test.ts',
  'src/testing/explore/{exploration-errors,schedule/waits}.test.ts',
]

/** Storms of eight processes each, and tests that measure speed. They run when all others are done. */
const storms = ['src/**/*.{storm,timing}.test.ts']

const direct = {
  test: {
    ...common,
    name: 'direct',
    include: ['src/**/*.test.ts', 'scripts/**/*.test.ts', 'examples/**/*.test.ts'],
    exclude: [...processes, ...storms, ...withTheSoak],
  },
}

const stormy = {
  test: { ...common, name: 'direct-storms', include: storms, maxWorkers: 2, sequence: { groupOrder: 3 } },
}

/** They wait for servers and other processes to come and go: more of them at a time, when all the others are done. */
const waiting = {
  test: {
    ...common,
    name: 'processes',
    include: processes,
    exclude: withTheSoak,
    // Six at a time share two cores with all that they start.
    testTimeout: 120_000,
    hookTimeout: 120_000,
    maxWorkers: 6,
    sequence: { groupOrder: 1 },
  },
}

/** What depends on the server, again in another way. What starts servers of its own does not. */
const again = (name: string, env: Record<string, string>, left: readonly string[] = []) => ({
  test: {
    ...common,
    name,
    include: ['src/**/*.test.ts'],
    exclude: [
      ...withTheSoak,
      'src/postgres/embedded/**',
      'src/cli/**',
      'src/server/**',
      // Over processes of their own; what they rest on is tested everywhere.
      'src/http/**',
      // What a report looks like does not depend on the server.
      'src/testing/explore/report/**',
      'src/testing/crash/report/**',
      'src/testing/page/**',
      // Exhaustive, or with processes and servers of their own; what they rest on is tested everywhere.
      'src/{claims,locks,tables,ops,jobs}/**/*.{explore,crash,cut,storm,timing,property}.test.ts',
      // They ask no server, or are refused before they do.
      'src/**/*.types.test.ts',
      'src/{claims,locks}/*-input.test.ts',
      'src/errors.test.ts',
      'src/claims/{batches,rate-local,store-watch}.test.ts',
      'src/postgres/{identifier,with-timeout}.test.ts',
      'src/postgres/migrations/{check-applied,read-migrations}.test.ts',
      'src/testing/seeded-random.test.ts',
      // They wait for seconds for what is the same everywhere.
      'src/claims/acquire-holds.test.ts',
      'src/locks/{lock-loss,flight-loss,lock-full-pool,lock-keeper,held-lock,bell}.test.ts',
      'src/claims/{acquire-leased,once-lease}.test.ts',
      'src/jobs/{slow-look,heartbeat-thread}.test.ts',
      // What a process keeps in memory does not depend on the server.
      'src/heap.test.ts',
      // They start processes, or go to the server over a way of their own.
      'src/jobs/{poison,strays,job-commit,history-day,shutdown,not-started}.test.ts',
      // They start servers and processes.
      'src/testing/crash/server.test.ts',
      'src/testing/crash/process.test.ts',
      // Long, and about what the explorer makes of statements; what it asks the catalog is tested everywhere.
      ...['corpus', 'hostile', 'self-check', 'classes'].map(
        (name) => `src/testing/explore/reduce/${name}.test.ts`,
      ),
      // The explorer must know which backend serves whom, and goes to the server itself in any case.
      ...(env.DIBS_TEST_VIA ? ['src/testing/{explore,crash,gate,proxy}/**'] : []),
      ...left,
    ],
    env,
  },
})

/** Another server than the usual one, and as old as can be had: the oldest that must work, or in its place that of the distribution. */
const older = process.env.TEST_DATABASE_URL
  ? undefined
  : requireComponent('PostgreSQL 14', postgres14, 'the suite on the oldest server that must work')
    ? 'postgres-14'
    : systemPostgres && 'postgres-system'
const onOlder: Record<string, string> = older ? { DIBS_TEST_ON: older } : {}

interface Project {
  readonly test: { readonly name: string; include: string[]; readonly exclude: string[] }
}

/** What waits, more of it at a time, when what keeps the machine busy is done. */
const inTwo = ({ test }: Project): Project[] => [
  { test: { ...test, exclude: [...test.exclude, ...patient] } },
  {
    test: {
      ...test,
      ...{ name: `${test.name}-patient`, include: patient, maxWorkers: 6, sequence: { groupOrder: 2 } },
    } as Project['test'],
  },
]

const projects: object[] = [...inTwo(direct), waiting, stormy]
/** What goes there through every library already, with the conformance of the adapters. */
const rows = ['src/{tables,postgres/rows}/**/*.test.ts', 'src/locks/{row-lock,versions}*.test.ts']
/** Through PgBouncer in transaction mode, to the older server: prepared names and listening off. */
const bouncer = requireComponent('PgBouncer', pgBouncerVersion(), 'the suite through PgBouncer')
if (bouncer)
  projects.push(
    ...inTwo(
      again('pgbouncer', { DIBS_TEST_VIA: 'pgbouncer', ...onOlder }, [
        // Which period a moment is in does not depend on the way to the server; storms make their own way.
        'src/claims/period.test.ts',
        ...rows,
        ...storms,
        'src/postgres/migrations/migrate.processes.test.ts',
      ]),
    ),
  )
if (older) {
  const onIt = again(older, onOlder, [
    // What the explorer and the crash loop find does not depend on the server; how they ask it does.
    ...(older === 'postgres-14'
      ? [
          'testing',
          '{proxy,wire,gate}/*',
          'crash/{crash,crash-loop,effects,zombie,half-open,errors}',
          'explore/{exploration-errors,acceptance}',
          'explore/stage/libraries',
          'explore/stage/sessions',
          'explore/statements/parse-statements',
        ].map((name) => `src/testing/${name}.test.ts`)
      : ['src/testing/**']),
    ...storms,
  ])
  // The rest has come there through PgBouncer.
  if (bouncer)
    onIt.test.include = [
      ...rows,
      'src/testing/**/*.test.ts',
      'src/claims/period.test.ts',
      'src/postgres/{wakeups,fence}.test.ts',
    ]
  projects.push(onIt)
}

export default defineConfig({
  test: {
    globalSetup: ['test/global-setup.ts'],
    // Many tests make things fail, and each failure is a line on stderr.
    silent: 'passed-only',
    // By default two cores would get one worker. With three there is always one that does not wait for its server.
    maxWorkers: availableParallelism() + 1,
    projects,
  },
})
