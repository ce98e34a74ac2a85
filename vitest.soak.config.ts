import { defineConfig } from 'vitest/config'
import { external, loadBuild } from './test/load-build.js'

/** Long runs with faults; `npm run soak`. SOAK_SECONDS sets how long each goes on. */
export default defineConfig({
  plugins: [loadBuild],
  test: {
    server: { deps: { external } },
    globalSetup: ['test/global-setup.ts'],
    setupFiles: ['test/leaks.ts'],
    include: [
      '{src,examples}/**/*.{soak.ts,{explore,crash,cut,storm,browser}.test.ts}',
      'src/tables/aggregate/aggregate{,-verify}.test.ts', // with tests in depth
    ],
    tags: [{ name: 'real-time', description: 'judged by milliseconds: runs alone' }],
    env: {
      SOAK_SECONDS: process.env.SOAK_SECONDS ?? '120',
      DIBS_PATIENCE_MS: process.env.DIBS_PATIENCE_MS ?? '20000',
    },
    testTimeout: 3_600_000,
    hookTimeout: 60_000,
    fileParallelism: false,
  },
})
