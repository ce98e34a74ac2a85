import type { History, Read, Write } from './accesses.js'
import { areOfOtherRows, follows, misses } from './conflicts.js'
import type { StepLink } from './links.js'
import { place } from './words.js'

/**
 * Who reads what of whom. Few and telling: of all commits that a read can see, the last one; of those that it came too early
 * for, the first, and only where that mattered.
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
  what: place({ table: read.table, keys: allKeys(writes) ?? (writes.length === 1 ? read.keys : undefined) }),
})

function allKeys(writes: readonly Write[]): ReadonlySet<string> | undefined {
  const keys = writes.map((write) => write.keys)
  return keys.includes(undefined) ? undefined : new Set(keys.flatMap((some) => [...(some ?? [])]))
}

function seenBy(read: Read, { writes }: History): StepLink[] {
  const seen = writes.filter((write) => follows(read, write) && !isOverwritten(write, read, writes))
  const last = Math.max(...seen.map(({ committed }) => committed))
  const together = seen.filter(({ committed }) => committed === last)
  return together.length > 0 ? [link('reads', read, together)] : []
}

/** The reader's own change of the same rows came later. */
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
  const together = missed.filter(({ committed }) => committed === first.committed)
  return [link('misses', read, together)]
}

/**
 * The reader was not over and done with when it was committed: it wrote later, or saw later
 * what else was committed then; or the two missed each other.
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
