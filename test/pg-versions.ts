import { createRequire } from 'node:module'
import type pg from 'pg'

const require = createRequire(import.meta.url)

export interface PgVersion {
  readonly version: string
  readonly pg: typeof pg
}

/** The oldest pg that must work, one from before it kept the transaction status, and the newest. */
export const pgVersions: readonly PgVersion[] = ['pg811', 'pg816', 'pg'].map((name) => ({
  version: require(`${name}/package.json`).version,
  pg: require(name),
}))
