import type { PostgresJsAnswer, PostgresJsRows, PostgresJsTransaction } from './postgres-js-transaction.js'

/** PostgreSQL allows 1664 columns in a list. */
const MAX_PROBED_NAMES = 1600

/**
 * Returns a function that gives the columns of an answer the names they have in PostgreSQL.
 *
 * postgres.js keeps only what `transform` made of a name. But a column is named by a word of its statement, except
 * for `select *`. So when a name is not among these words, the words are sent as names of columns, and what comes
 * back tells which word became which name.
 */
export function restoreColumnNames(
  sql: Pick<PostgresJsTransaction, 'unsafe'>,
  send: (query: PostgresJsRows) => Promise<PostgresJsAnswer>,
) {
  const known = new Map<string, string>()

  return async (text: string, names: readonly string[]): Promise<readonly string[]> => {
    const words = wordsOf(text)
    if (names.every((name) => words.has(name))) return names
    if (!names.every((name) => known.has(name))) await probe(words)
    return names.map((name) => known.get(name) ?? name)
  }

  async function probe(words: ReadonlySet<string>): Promise<void> {
    const list = [...words].slice(0, MAX_PROBED_NAMES)
    const columns = list.map((word) => `null as "${word.replaceAll('"', '""')}"`)
    const answer = await send(sql.unsafe(`select ${columns.join(', ')}`).values())
    for (const [index, { name }] of Array.from(answer.columns ?? []).entries()) {
      const word = list[index]
      if (word !== undefined && !known.has(name)) known.set(name, word)
    }
  }
}

/** Everything in a statement that can name a column, and more: words in literals and comments do no harm. */
function wordsOf(text: string): ReadonlySet<string> {
  const plain = text.match(/[\p{L}_][\p{L}\p{N}_$]*/gu) ?? []
  const quoted = text.match(/"(?:[^"]|"")+"/g) ?? []
  // PostgreSQL folds what is not quoted to lower case.
  return new Set([
    ...plain.map((word) => word.toLowerCase()),
    ...quoted.map((word) => word.slice(1, -1).replaceAll('""', '"')),
  ])
}
