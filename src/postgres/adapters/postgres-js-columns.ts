import type { PostgresJsAnswer, PostgresJsRows, PostgresJsTransaction } from './postgres-js-transaction.js'

/** PostgreSQL allows 1664 columns in a list. */
const MAX_PROBED_NAMES = 1600

/**
 * Returns a function that restores the PostgreSQL names of a result's columns.
 *
 * postgres.js keeps only the name that `transform` returned. Except for `select *`, the name of a column is a word of
 * its statement. If a name is not among these words, the function sends all words as column names. The result shows
 * which word became which name.
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

/** All words of a statement. Words in literals and comments are not column names, and do no harm. */
function wordsOf(text: string): ReadonlySet<string> {
  const plain = text.match(/[\p{L}_][\p{L}\p{N}_$]*/gu) ?? []
  const quoted = text.match(/"(?:[^"]|"")+"/g) ?? []
  // PostgreSQL folds unquoted names to lower case.
  return new Set([
    ...plain.map((word) => word.toLowerCase()),
    ...quoted.map((word) => word.slice(1, -1).replaceAll('""', '"')),
  ])
}
