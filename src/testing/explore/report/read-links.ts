import { areOfOtherRows, follows, misses } from './conflicts.js'
import type { History, Read, Write } from './history.js'
import type { StepLink } from './links.js'
import { describeRows } from './words.js'

/**
 * Finds the links `reads` and `misses`, but only those that matter. Of all commits that a read sees, that is the last. Of
 * those that a read misses, that is the first, and only if the commit could have made a difference.
 */
export function readLinks(history: History): StepLink[] {
  const links = history.reads.flatMap((read) => [...seenBy(read, history), ...missedBy(read, history)])
  // One statement may read a table twice.
  const signs = links.map(({ kind, from, to }) => `${kind} ${from} ${to}`)
  return links.filter((_, i) => signs.indexOf(signs[i] as string) === i)
}

const byCommit = (a: Write, b: Write): number => a.committed - b.committed

/** @param writes of one commit */
const link = (kind: StepLink['kind'], read: Read, writes: readonly Write[]): StepLink => ({
  kind,
  from: (writes[0] as Write).committed,
  to: read.access.step,
  what: describeRows({
    table: read.table,
    keys: allKeys(writes) ?? (writes.length === 1 ? read.keys : undefined),
  }),
})

function allKeys(writes: readonly Write[]): ReadonlySet<string> | undefined {
  const keys = writes.map((write) => write.keys)
  return keys.includes(undefined) ? undefined : new Set(keys.flatMap((some) => [...(some ?? [])]))
}

function seenBy(read: Read, { writes }: History): StepLink[] {
  const seen = writes.filter((write) => follows(read, write) && !isOverwritten(write, read, writes))
  const last = Math.max(...seen.map(({ committed }) => committed))
  const ofOneCommit = seen.filter(({ committed }) => committed === last)
  return ofOneCommit.length > 0 ? [link('reads', read, ofOneCommit)] : []
}

/** True if the reader itself changed the same rows later. */
function isOverwritten(write: Write, read: Read, writes: readonly Write[]): boolean {
  const isOwn = ({ access, table }: Write): boolean =>
    access.unit === read.access.unit &&
    table === write.table &&
    access.step > write.committed &&
    access.step < read.access.step
  const own = allKeys(writes.filter(isOwn))
  return write.keys !== undefined && own !== undefined && [...write.keys].every((key) => own.has(key))
}

function missedBy(read: Read, history: History): StepLink[] {
  const missed = history.writes.filter((write) => misses(read, write)).toSorted(byCommit)
  const [first] = missed
  if (!first || !matters(read, first, history)) return []
  const ofOneCommit = missed.filter(({ committed }) => committed === first.committed)
  return [link('misses', read, ofOneCommit)]
}

/**
 * True if the missed write could have made a difference. Either the reader committed a write later, or later read something
 * else of the same commit; or the two actors missed each other's writes.
 */
function matters({ access }: Read, missed: Write, { reads, writes }: History): boolean {
  const own = writes.filter((write) => write.access.unit === access.unit)
  if (own.some(({ committed }) => committed > missed.committed)) return true
  return reads.some((other) => {
    if (other.access.unit === access.unit)
      return writes.some((write) => write.committed === missed.committed && follows(other, write))
    return (
      other.access.unit === missed.access.unit &&
      own.some((write) => misses(other, write) && areOfOtherRows(write, missed))
    )
  })
}
