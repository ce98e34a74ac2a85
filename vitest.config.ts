import { availableParallelism } from 'node:os'
import { defineConfig } from 'vitest/config'
import { requireComponent } from './test/components.js'
import { pgBouncerVersion } from './test/pgbouncer.js'
import { postgres14, systemPostgres } from './test/postgres-installations.js'

const common = {
  setupFiles: ['test/leaks.ts'],
  testTimeout: 20_000,
  hookTimeout: 20_000,
}

/** Long ones, which run with the soak; and all of them where guards are removed to see who notices. */
const withTheSoak = process.env.DIBS_TEST_ALL
  ? []
  : [
      'src/postgres/embedded/keeper.{abuse,obstacles}.test.ts',
      'src/testing/explore/reduce/{corpus,hostile,self-check}.test.ts',
    ]

const processes = [
  'src/postgres/embedded/**/*.test.ts',
  'src/http/*.http.test.ts',
  'src/cli/serve.test.ts',
  'src/dibs.test.ts',
  'src/testing/crash/{process,server}.test.ts',
]

const direct = {
  test: {
    ...common,
    name: 'direct',
    include: ['src/**/*.test.ts', 'scripts/**/*.test.ts', 'examples/**/*.test.ts'],
    exclude: [...processes, ...withTheSoak],
  },
}

/** They wait for servers and other processes to come and go: more of them at a time, when all the others are done. */
const waiting = {
  test: {
    ...common,
    name: 'processes',
    include: processes,
    exclude: withTheSoak,
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
      'src/{claims,locks,tables}/**/*.{explore,crash,cut,storm,property}.test.ts',
      // They ask no server, or are refused before they do.
      'src/**/*.types.test.ts',
      'src/{claims,locks}/*-input.test.ts',
      'src/errors.test.ts',
      'src/claims/{batches,rate-local,store-watch}.test.ts',
      'src/postgres/identifier.test.ts',
      'src/postgres/migrations/{check-applied,read-migrations}.test.ts',
      'src/testing/seeded-random.test.ts',
      // They wait for seconds for what is the same everywhere.
      'src/claims/acquire-holds.test.ts',
      'src/locks/{lock-loss,held-lock,bell}.test.ts',
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

const projects: object[] = [direct, waiting]
/** Through PgBouncer in transaction mode: prepared names and listening off. */
if (requireComponent('PgBouncer', pgBouncerVersion(), 'the suite through PgBouncer'))
  // Which period a moment is in does not depend on the way to the server; storms make their own way.
  projects.push(
    again('pgbouncer', { DIBS_TEST_VIA: 'pgbouncer' }, [
      'src/claims/period.test.ts',
      // The same statements go there through every library, with the conformance of the adapters.
      'src/{tables,postgres/rows}/**',
      'src/locks/{row-lock,versions}*.test.ts',
      'src/**/*.storm.test.ts',
    ]),
  )
if (!process.env.TEST_DATABASE_URL) {
  if (requireComponent('PostgreSQL 14', postgres14, 'the suite on the oldest server that must work'))
    // What the explorer and the crash loop find does not depend on the server; how they ask it does, and is tested there too.
    projects.push(
      again('postgres-14', { DIBS_TEST_ON: 'postgres-14' }, [
        'src/testing/crash/crash.test.ts',
        'src/testing/explore/acceptance.test.ts',
        'src/testing/explore/hermitage.test.ts',
      ]),
    )
  // In place of the oldest, where that is not published: what the SQL of each part says.
  const left = [
    'src/testing/**',
    'src/postgres/migrations/**',
    'src/postgres/{adapters/**,transaction*.test.ts}',
    'src/**/*.storm.test.ts',
    'src/{dibs.test.ts,ops/**,claims/once-lease.test.ts}',
  ]
  if (systemPostgres && !postgres14)
    projects.push(again('postgres-system', { DIBS_TEST_ON: 'postgres-system' }, left))
}

export default defineConfig({
  test: {
    globalSetup: ['test/global-setup.ts'],
    // Tests wait more than they work: by default two cores would get one worker. With three, some run out of their time.
    maxWorkers: Math.max(2, availableParallelism() - 1),
    projects,
  },
})
