import { FenceLostError } from '../errors.js'
import type { TextRow } from './text-values.js'

/**
 * The answer of a write that named the fence it was given, or `FenceLostError` if it touched no row: then someone
 * else holds the claim, and nothing was written.
 */
export function expectFence(rows: readonly TextRow[], subject: string, fence: number): TextRow {
  const [row] = rows
  if (!row) throw new FenceLostError(subject, fence)
  return row
}
