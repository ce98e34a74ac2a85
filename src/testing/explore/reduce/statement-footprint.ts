import type { Statement } from '../statements/parse-statements.js'
import { EMPTY, everything, type Footprint } from './footprint.js'
import type { Values } from './key-values.js'
import { type Lore, StatementReader } from './statement-reader.js'

/** What one statement reads, locks and leaves, with these parameters. */
export function statementFootprint(statement: Statement, values: Values, lore: Lore): Footprint {
  const { kind, tree, isParsed, text } = statement
  switch (kind) {
    case 'begin':
    case 'savepoint':
    case 'setting':
      return EMPTY
    case 'commit':
      return /^\s*prepare/i.test(text) ? everything('PREPARE TRANSACTION') : { ...EMPTY, ends: 'commit' }
    case 'rollback':
      return { ...EMPTY, ends: 'rollback' }
    case 'rollback-to':
      return { ...EMPTY, ends: 'savepoint' }
  }
  if (!isParsed) return everything(`${JSON.stringify(text)} is not understood`)
  return new StatementReader(values, lore).read(tree)
}
