import { defineConfig } from 'vitest/config'
import { requireComponent } from './test/components.js'
import { pgBouncerVersion } from './test/pgbouncer.js'

const common = {
  setupFiles: ['test/leaks.ts'],
  testTimeout: 20_000,
  hookTimeout: 20_000,
}

const direct = {
  test: {
    ...common,
    name: 'direct',
    include: ['src/**/*.test.ts', 'scripts/**/*.test.ts', 'examples/**/*.test.ts'],
  },
}

/** The suite of `src/postgres` again, through PgBouncer in transaction mode: prepared names and listening off. */
const pgBouncer = {
  test: {
    ...common,
    name: 'pgbouncer',
    include: ['src/postgres/**/*.test.ts', 'src/dibs.test.ts'],
    env: { DIBS_TEST_VIA: 'pgbouncer' },
  },
}

const hasPgBouncer = requireComponent('PgBouncer', pgBouncerVersion(), 'the suite through PgBouncer')

export default defineConfig({
  test: { globalSetup: ['test/global-setup.ts'], projects: hasPgBouncer ? [direct, pgBouncer] : [direct] },
})
