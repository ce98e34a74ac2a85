import type { ClientBase } from 'pg'
import { hasMethods } from './name-given.js'
import { pendingQueries } from './pg-client-state.js'

/** Statements that end a transaction. ROLLBACK TO SAVEPOINT does not. */
const ends =
  /^\s*(?:commit|end|abort|prepare\s+transaction|rollback(?!\s+(?:(?:work|transaction)\s+)?to\b))\b/i

/** Queries that do not end a transaction and had no such query before them in the queue. */
const harmless = new WeakSet<object>()

/**
 * Whether a `pg` client has a COMMIT or ROLLBACK under way or in its queue. A statement that is sent now would run after it,
 * outside of the transaction. The status of the client does not tell: it changes when the answer comes.
 *
 * Each query is examined once, since thousands may be in the queue.
 */
export function hasQueuedEnd(client: unknown): boolean {
  if (!hasMethods(client, 'query', 'escapeIdentifier')) return false
  let newest: object | undefined
  for (const query of pendingQueries(client as ClientBase)) {
    if (typeof query !== 'object' || query === null) continue
    if (harmless.has(query)) break
    if (isEnd(query)) return true
    newest ??= query
  }
  if (newest) harmless.add(newest)
  return false
}

function isEnd(query: object): boolean {
  const text: unknown = Reflect.get(query, 'text')
  if (typeof text !== 'string' || text.length > MAX_CHARS) return false
  const bare = text.replace(/\/\*[\s\S]*?\*\/|--.*$|'(?:[^']|'')*'|\$(\w*)\$[\s\S]*?\$\1\$/gm, ' ')
  return bare.split(';').some((one) => ends.test(one))
}

/** Nobody hides a COMMIT behind a longer text, and reading that would take time. */
const MAX_CHARS = 10_000
