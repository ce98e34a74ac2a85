import { childOf, lastPart, someNode } from '../statements/parse-tree.js'
import type { Column } from '../statements/schema-info.js'

/** Functions that return the time, or the id of the transaction. */
const CLOCKS =
  /^(?:now|clock_timestamp|transaction_timestamp|statement_timestamp|timeofday|uuidv7|age|pg_current_xact_id|txid_current)/

/** True for a string that becomes the time when it is cast: `'now'::timestamptz`. */
export const isTimeWord = (text: unknown): boolean =>
  typeof text === 'string' && /^\s*(?:now|today|tomorrow|yesterday)\s*$/i.test(text)

/** True if an expression reads the time at any depth: a function of `CLOCKS`, CURRENT_TIMESTAMP, or `'now'`. */
export const readsClock = (tree: unknown): boolean =>
  someNode(tree, (kind, node) => {
    if (kind === 'FuncCall') return CLOCKS.test(lastPart(node.funcname) ?? '')
    if (kind === 'A_Const') return isTimeWord(childOf(node, 'sval')?.sval)
    return kind === 'SQLValueFunction'
  })

/** True for a column that may get the time, or the id of the transaction, by default. */
export const defaultsToTime = ({ isTemporal, default: byDefault }: Column): boolean =>
  isTemporal && byDefault !== 'null'
