import type { Database } from '../../src/postgres/database.js'
import { renewalConnectionOf } from '../../src/postgres/dedicated-connection.js'

/** The reserved line helps out when the pool takes its time. In a scene nothing may depend on how long that is. */
export function withoutLine(database: Database): Database {
  const line = renewalConnectionOf(database)
  Object.defineProperty(line, 'isBusy', { value: true })
  line.whenFree = () => new Promise(() => {})
  return database
}
