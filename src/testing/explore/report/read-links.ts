import type { Trace } from '../schedule/trace.js'
import { type History, historyOf, type Knowledge, type Read, type Write } from './accesses.js'
import { follows, misses } from './conflicts.js'
import { place } from './words.js'

/** How a read and a commit of somebody else's hang together; indexes into the steps of the schedule. */
export interface ReadLink {
  /** `reads`: `to` sees what `from`, a commit, has published; `misses`: `to` came before it. */
  readonly kind: 'reads' | 'misses'
  readonly from: number
  readonly to: number
  readonly what?: string | undefined
}

/**
 * Few and telling: of all commits that a read can see, the last one; of those that it came too early for, the first, and
 * only where the reader went on to write. None where some step may have done what cannot be told.
 */
export function readLinks(trace: Trace, knowledge: Knowledge): ReadLink[] {
  const history = historyOf(trace, knowledge)
  if (!history) return []
  const links = history.reads.flatMap((read) => [...seenBy(read, history), ...missedBy(read, history)])
  return links.filter(
    (link, i) =>
      i === links.findIndex(({ kind, from, to }) => kind === link.kind && from === link.from && to === link.to),
  )
}

const byCommit = (a: Write, b: Write): number => a.committed - b.committed

const link = (kind: ReadLink['kind'], read: Read, write: Write): ReadLink => ({
  kind,
  from: write.committed,
  to: read.access.step,
  what: place({ table: read.table, keys: write.keys ?? read.keys }),
})

function seenBy(read: Read, { writes }: History): ReadLink[] {
  const last = writes.filter((write) => follows(read, write)).toSorted(byCommit).at(-1)
  return last ? [link('reads', read, last)] : []
}

function missedBy(read: Read, { writes }: History): ReadLink[] {
  const [first] = writes.filter((write) => misses(read, write)).toSorted(byCommit)
  const { unit, step } = read.access
  const wrote = writes.some(({ access, committed }) => access.unit === unit && committed > step)
  return first && wrote ? [link('misses', read, first)] : []
}
