import type { TestProject } from 'vitest/node'
import { pgBouncerVersion, startPgBouncer } from './pgbouncer.js'
import { type PostgresServer, startPostgres } from './postgres-server.js'

declare module 'vitest' {
  interface ProvidedContext {
    /** Straight to the server. */
    directUrl: string
    /** Through PgBouncer, where that is installed. */
    pgBouncerUrl: string | undefined
  }
}

/** One PostgreSQL and one PgBouncer for the whole run, or the server of TEST_DATABASE_URL. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const given = process.env.TEST_DATABASE_URL
  const server: PostgresServer = given ? { url: given, stop: async () => {} } : await startPostgres()
  const bouncer = pgBouncerVersion() ? await startPgBouncer(server.url) : undefined
  project.provide('directUrl', server.url)
  project.provide('pgBouncerUrl', bouncer?.url)
  return async () => {
    await bouncer?.stop()
    await server.stop()
  }
}
