import type { History, Read, Write } from './accesses.js'
import type { Anomaly } from './anomaly-name.js'
import { actsOn, areOfOtherRows, follows, isKept, looksAgain, misses, touches } from './conflicts.js'
import { enumerate, place, stepName } from './words.js'

/** Two of whom each has read, before the other's COMMIT, what the other then wrote; and they wrote other rows. */
interface Crossing {
  readonly read: Read
  readonly own: Write
  readonly otherRead: Read
  readonly other: Write
}

/**
 * A5B of Berenson et al., G2 of Adya: two anti-dependencies in a circle, both committed. A read and a write of one connection
 * belong together if they are in one transaction, or the write came after the read.
 */
function crossings(history: History): readonly Crossing[] {
  const { reads, writes } = history
  const missed = reads.flatMap((read) =>
    writes.filter((write) => misses(read, write)).map((other) => ({ read, other })),
  )
  return missed.flatMap(({ read, other }) =>
    missed
      .filter((back) => isCrossed(history, { read, other, otherRead: back.read, own: back.other }))
      .map((back) => ({ read, other, otherRead: back.read, own: back.other })),
  )
}

function isCrossed(history: History, { read, other, otherRead, own }: Crossing): boolean {
  if (!actsOn(own, read) || !actsOn(other, otherRead) || !areOfOtherRows(own, other)) return false
  if (looksAgain(history, read, other.committed, own) || looksAgain(history, otherRead, own.committed, other))
    return false
  return isKept(read) && isKept(otherRead)
}

/** `alice read child (alice 2) before the commit of bob's change (bob 1)` */
const missing = (read: Read, { access, kind }: Write): string =>
  `${read.access.actor} read ${place(read)} (${stepName(read.access)}) before the commit of ` +
  `${access.actor}'s ${kind === 'insert' ? 'new row' : 'change'} (${stepName(access)})`

const crossed = ({ read, own, otherRead, other }: Crossing): string =>
  `${missing(read, other)}, and ${missing(otherRead, own)}; both committed.`

/** A write skew in which a row is missed that was not there yet: no lock of rows that are there would have helped. */
export function phantom(history: History): Anomaly | undefined {
  const found = crossings(history).find(({ own, other }) => own.kind === 'insert' || other.kind === 'insert')
  if (!found) return readTwice(history)
  const table = found.other.kind === 'insert' ? found.other.table : found.own.table
  return { name: 'phantom', explanation: `Phantom in ${table}: ${crossed(found)}` }
}

/** A3 of Berenson et al.: one transaction asks twice, and in between a row was committed that its condition holds for. */
function readTwice({ reads, writes, nameOf }: History): Anomaly | undefined {
  for (const first of reads)
    for (const second of reads) {
      const [a, b] = [first.access, second.access]
      if (a.transaction !== b.transaction || a.sign !== b.sign || a.step >= b.step || first.isWithin) continue
      if (JSON.stringify(a.result) === JSON.stringify(b.result)) continue
      const added = writes.find(
        (write) => write.kind === 'insert' && misses(first, write) && follows(second, write) && !first.keys,
      )
      if (!added) continue
      return {
        name: 'phantom',
        explanation:
          `Phantom in ${first.table}: ${a.actor} asked the same twice in one transaction (${stepName(a)} and ` +
          `${stepName(b)}), and a row of ${added.access.actor}'s was committed in between (${nameOf(added.committed)}).`,
      }
    }
  return undefined
}

export function writeSkew(history: History): Anomaly | undefined {
  const [found] = crossings(history)
  if (!found) return undefined
  const tables = [...new Set([found.read.table, found.otherRead.table])]
  return { name: 'write skew', explanation: `Write skew on ${enumerate(tables)}: ${crossed(found)}` }
}

/**
 * A5A of Berenson et al., G-single of Adya: one reads in two statements what another changed in one transaction, the one
 * half before its COMMIT and the other half after it. The reads are of one transaction, or of one who writes nothing.
 */
export function readSkew(history: History): Anomaly | undefined {
  const { reads, writes, nameOf } = history
  for (const first of reads)
    for (const second of reads) {
      if (!areOfOneLook(history, first, second)) continue
      for (const missed of writes)
        for (const seen of writes) {
          if (missed.access.transaction !== seen.access.transaction || !areOfOtherRows(missed, seen)) continue
          if (!misses(first, missed) || !follows(second, seen) || touches(missed, second)) continue
          const { actor } = first.access
          return {
            name: 'read skew',
            explanation:
              `Read skew on ${enumerate([...new Set([first.table, second.table])])}: ${missed.access.actor} changed ` +
              `${place(missed)} and ${place(seen)} in one transaction (committed in ${nameOf(missed.committed)}); ` +
              `${actor} read the one before it (${stepName(first.access)}) and the other after it (${stepName(second.access)}).`,
          }
        }
    }
  return undefined
}

function areOfOneLook({ reads, writes }: History, first: Read, second: Read): boolean {
  const [a, b] = [first.access, second.access]
  if (a.unit !== b.unit || a.step >= b.step || a.sign === b.sign) return false
  // Whoever has looked again at the first has what belongs to the second.
  const again = reads.some(
    (read) => read.access.unit === a.unit && read.table === first.table && read.access.step > b.step,
  )
  const isReport = !writes.some((write) => write.access.unit === a.unit)
  return !again && (a.transaction === b.transaction || isReport)
}
