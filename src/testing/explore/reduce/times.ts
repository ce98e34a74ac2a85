import type { Column } from '../statements/table-facts.js'
import { isRecord } from '../statements/tree-names.js'
import { inside, names } from './node.js'

/** Functions that tell the time, or which transaction it is. */
const CLOCKS =
  /^(?:now|clock_timestamp|transaction_timestamp|statement_timestamp|timeofday|uuidv7|age|pg_current_xact_id|txid_current)/

/** `'now'::timestamptz` */
export const isTimeWord = (text: unknown): boolean =>
  typeof text === 'string' && /^\s*(?:now|today|tomorrow|yesterday)\s*$/i.test(text)

/** Somewhere in it is a call of such a function, or CURRENT_TIMESTAMP and its kin. */
export function asksForTime(node: unknown): boolean {
  if (Array.isArray(node)) return node.some(asksForTime)
  if (!isRecord(node)) return false
  const call = inside(node, 'FuncCall')
  if (call && CLOCKS.test(names(call.funcname).at(-1) ?? '')) return true
  if (isTimeWord(inside(inside(node, 'A_Const'), 'sval')?.sval)) return true
  return inside(node, 'SQLValueFunction') !== undefined || Object.values(node).some(asksForTime)
}

/** It gets the time, or what goes with it, by default. */
export const isStamp = ({ isTime, default: given }: Column): boolean => isTime && given !== 'null'
