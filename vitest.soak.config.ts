import { defineConfig } from 'vitest/config'

/** Long runs with faults; `npm run soak`. SOAK_SECONDS sets how long each goes on. */
export default defineConfig({
  test: {
    globalSetup: ['test/global-setup.ts'],
    setupFiles: ['test/leaks.ts'],
    include: [
      'src/**/*.soak.ts',
      'src/**/*.storm.test.ts',
      'src/claims/{once,acquire}.{crash,cut}.test.ts',
      'src/locks/{lock,single-flight}.crash.test.ts',
      'src/claims/{kv,rate,quota,quota.many,singleton,acquire,acquire-holds,acquire-rates}.explore.test.ts',
      'src/{locks/election,locks/single-flight,tables/*}.explore.test.ts',
      'src/ops/maintenance.crash.test.ts',
      'src/jobs/job.crash.test.ts',
      'src/tables/aggregate{,-verify}.test.ts',
      'src/testing/explore/reduce/{hostile,corpus,self-check,classes}.test.ts',
      'src/tables/{rows,monitor}.crash.test.ts',
      'src/postgres/embedded/{failures,keeper.abuse,keeper.kill,keeper.obstacles,users}.test.ts',
      'src/testing/{explore,crash}/report/**/*.test.ts',
      'src/http/nest-fastify.http.test.ts',
      'src/testing/explore/{acceptance,hermitage}.test.ts',
      'src/testing/explore/stage/libraries.test.ts',
      'examples/**/*.soak.ts',
      'examples/races/crashes/crashes.test.ts',
    ],
    env: {
      SOAK_SECONDS: process.env.SOAK_SECONDS ?? '120',
      DIBS_PATIENCE_MS: process.env.DIBS_PATIENCE_MS ?? '20000',
    },
    testTimeout: 3_600_000,
    hookTimeout: 60_000,
    fileParallelism: false,
  },
})
