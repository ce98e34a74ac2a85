/** Statements that end a transaction. ROLLBACK TO SAVEPOINT does not. */
const ends =
  /^\s*(?:commit|end|abort|prepare\s+transaction|rollback(?!\s+(?:(?:work|transaction)\s+)?to\b))\b/i

/**
 * Whether a `pg` client has a COMMIT or ROLLBACK under way or in its queue. A statement that is sent now would run after it,
 * outside of the transaction. The status of the client does not tell: it changes when the answer comes.
 */
export function hasQueuedEnd(client: unknown): boolean {
  if (typeof client !== 'object' || client === null) return false
  return fields.flatMap((field) => (field in client ? Reflect.get(client, field) : [])).some(isEnd)
}

/** What runs now, what waits to be sent, and what a pipelining client has sent. */
const fields = ['_activeQuery', '_queryQueue', '_sentQueryQueue']

function isEnd(query: unknown): boolean {
  if (typeof query !== 'object' || query === null) return false
  const text: unknown = Reflect.get(query, 'text')
  if (typeof text !== 'string' || text.length > MAX_CHARS) return false
  const bare = text.replace(/\/\*[\s\S]*?\*\/|--.*$|'(?:[^']|'')*'|\$(\w*)\$[\s\S]*?\$\1\$/gm, ' ')
  return bare.split(';').some((one) => ends.test(one))
}

/** Nobody hides a COMMIT behind a longer text, and reading that would take time. */
const MAX_CHARS = 10_000
