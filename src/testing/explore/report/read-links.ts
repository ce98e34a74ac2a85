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

const link = (kind: StepLink['kind'], read: Read, write: Write): StepLink => ({
  kind,
  from: write.committed,
  to: read.access.step,
  what: place({ table: read.table, keys: write.keys ?? read.keys }),
})

function seenBy(read: Read, { writes }: History): StepLink[] {
  const last = writes
    .filter((write) => follows(read, write))
    .toSorted(byCommit)
    .at(-1)
  return last ? [link('reads', read, last)] : []
}

function missedBy(read: Read, history: History): StepLink[] {
  const [first] = history.writes.filter((write) => misses(read, write)).toSorted(byCommit)
  return first && matters(read, first, history) ? [link('misses', read, first)] : []
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
