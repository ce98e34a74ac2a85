import type { Pool } from 'pg'

const counts = new WeakMap<Pool, number>()

/**
 * Marks a pool whose statements the test kit orders or counts. Dibs then sends no background statements through that
 * pool. Returns a function that removes the mark.
 */
export function markUnderTest(pool: Pool): () => void {
  counts.set(pool, (counts.get(pool) ?? 0) + 1)
  return () => void counts.set(pool, (counts.get(pool) ?? 1) - 1)
}

export const isUnderTest = (pool: Pool): boolean => (counts.get(pool) ?? 0) > 0
