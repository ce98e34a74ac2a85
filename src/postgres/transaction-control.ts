import type { ClientBase } from 'pg'
import { hasMethods } from '../options/name-given.js'
import { pendingQueries } from './pg-client-state.js'

const TO_SAVEPOINT = String.raw`\s+(?:(?:work|transaction)\s+)?to\b`
const END = String.raw`commit|end|abort|prepare\s+transaction|rollback(?!${TO_SAVEPOINT})`

const beginOrEnd = new RegExp(String.raw`^[\s;]*(?:${END}|begin|start\s+transaction)\b`, 'i')
const end = new RegExp(String.raw`^\s*(?:${END})\b`, 'i')
const rollbackToSavepoint = new RegExp(String.raw`^\s*rollback${TO_SAVEPOINT}`, 'i')

/** True if a string begins with a statement that ends a transaction or begins one. */
export const isTransactionControl = (text: string): boolean => beginOrEnd.test(text)

/** The statements of a string, without comments and string constants. */
const statementsOf = (text: string): string[] =>
  text.replace(/\/\*[\s\S]*?\*\/|--.*$|'(?:[^']|'')*'|\$(\w*)\$[\s\S]*?\$\1\$/gm, ' ').split(';')

/** The number of ROLLBACK TO SAVEPOINT in a string of statements. */
export const countRollbacksToSavepoint = (text: string): number =>
  statementsOf(text).filter((one) => rollbackToSavepoint.test(one)).length

/** Longer strings are not searched for COMMIT, because that takes time. */
const MAX_CHARS = 10_000

/** Queries that do not end a transaction and had no such query before them in the queue. */
const harmless = new WeakSet<object>()

/**
 * True if a `pg` client has a COMMIT or ROLLBACK under way or in its queue. A new statement would run after it, outside
 * of the transaction. The status of the client does not show that: it changes when the answer comes.
 *
 * Each query is examined once, because thousands may be in the queue.
 */
export function hasQueuedEnd(client: unknown): boolean {
  if (!hasMethods(client, 'query', 'escapeIdentifier')) return false
  let newest: object | undefined
  for (const query of pendingQueries(client as ClientBase)) {
    if (typeof query !== 'object' || query === null) continue
    if (harmless.has(query)) break
    const text: unknown = Reflect.get(query, 'text')
    const isSearched = typeof text === 'string' && text.length <= MAX_CHARS
    if (isSearched && statementsOf(text).some((one) => end.test(one))) return true
    newest ??= query
  }
  if (newest) harmless.add(newest)
  return false
}
