import type { Database } from '../../src/postgres/database.js'
import { lineOf } from '../../src/postgres/reserved-line.js'

/** The reserved line helps out when the pool takes its time. In a scene nothing may depend on how long that is. */
export function withoutLine(database: Database): Database {
  const line = lineOf(database)
  Object.defineProperty(line, 'isBusy', { value: true })
  line.whenFree = () => new Promise(() => {})
  return database
}
