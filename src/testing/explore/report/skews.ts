import type { Anomaly } from './anomaly.js'
import { actsOn, areOfOtherRows, follows, isKept, misses, readsAgain, touches } from './conflicts.js'
import type { History, Read, Write } from './history.js'
import { describeRows, enumerate, stepName } from './words.js'

/** Two units that each read, before the other's COMMIT, what the other then wrote, and wrote different rows. */
interface MutualMiss {
  readonly read: Read
  readonly own: Write
  readonly otherRead: Read
  readonly other: Write
}

/**
 * Finds A5B of Berenson et al., G2 of Adya: a cycle of two anti-dependencies, both committed. A read and a write of one
 * connection belong together if they are in one transaction, or the write came after the read.
 */
function mutualMisses(history: History): readonly MutualMiss[] {
  const { reads, writes } = history
  const missed = reads.flatMap((read) =>
    writes.filter((write) => misses(read, write)).map((other) => ({ read, other })),
  )
  return missed.flatMap(({ read, other }) =>
    missed
      .filter((back) => isMutualMiss(history, { read, other, otherRead: back.read, own: back.other }))
      .map((back) => ({ read, other, otherRead: back.read, own: back.other })),
  )
}

function isMutualMiss(history: History, { read, other, otherRead, own }: MutualMiss): boolean {
  if (!actsOn(own, read) || !actsOn(other, otherRead) || !areOfOtherRows(own, other)) return false
  if (readsAgain(history, read, other.committed, own) || readsAgain(history, otherRead, own.committed, other))
    return false
  return isKept(read) && isKept(otherRead)
}

/** `alice read child (alice 2) before the commit of bob's change (bob 1)` */
const missing = (read: Read, { access, kind }: Write): string =>
  `${read.access.actor} read ${describeRows(read)} (${stepName(read.access)}) before the commit of ` +
  `${access.actor}'s ${kind === 'insert' ? 'new row' : 'change'} (${stepName(access)})`

const describe = ({ read, own, otherRead, other }: MutualMiss): string =>
  `${missing(read, other)}, and ${missing(otherRead, own)}; both committed.`

/** Finds a write skew whose missed row did not exist at the time of the read. No row lock would have prevented it. */
export function phantom(history: History): Anomaly | undefined {
  const found = mutualMisses(history).find(
    ({ own, other }) => own.kind === 'insert' || other.kind === 'insert',
  )
  if (!found) return readTwice(history)
  const table = found.other.kind === 'insert' ? found.other.table : found.own.table
  return { name: 'phantom', explanation: `Phantom in ${table}: ${describe(found)}` }
}

/** Finds A3 of Berenson et al.: a transaction runs a query twice, and in between a row that meets its condition is committed. */
function readTwice({ reads, writes, nameOf }: History): Anomaly | undefined {
  for (const first of reads)
    for (const second of reads) {
      const [a, b] = [first.access, second.access]
      if (
        a.transaction !== b.transaction ||
        a.signature !== b.signature ||
        a.step >= b.step ||
        first.isNested
      )
        continue
      if (JSON.stringify(a.result) === JSON.stringify(b.result)) continue
      const added = writes.find(
        (write) => write.kind === 'insert' && misses(first, write) && follows(second, write) && !first.keys,
      )
      if (!added) continue
      return {
        name: 'phantom',
        explanation:
          `Phantom in ${first.table}: ${a.actor} ran the same query twice in one transaction (${stepName(a)} and ` +
          `${stepName(b)}), and a row of ${added.access.actor}'s was committed in between (${nameOf(added.committed)}).`,
      }
    }
  return undefined
}

export function writeSkew(history: History): Anomaly | undefined {
  const [found] = mutualMisses(history)
  if (!found) return undefined
  const tables = [...new Set([found.read.table, found.otherRead.table])]
  return { name: 'write skew', explanation: `Write skew on ${enumerate(tables)}: ${describe(found)}` }
}

/**
 * Finds A5A of Berenson et al., G-single of Adya. Another actor changes two things in one transaction. A unit reads one of
 * them before the COMMIT and the other after it. Both reads are in one transaction, or the unit writes nothing.
 */
export function readSkew(history: History): Anomaly | undefined {
  const { reads, writes, nameOf } = history
  for (const first of reads)
    for (const second of reads) {
      if (!belongTogether(history, first, second)) continue
      for (const missed of writes)
        for (const seen of writes) {
          if (missed.access.transaction !== seen.access.transaction || !areOfOtherRows(missed, seen)) continue
          if (!misses(first, missed) || !follows(second, seen) || touches(missed, second)) continue
          const { actor } = first.access
          return {
            name: 'read skew',
            explanation:
              `Read skew on ${enumerate([...new Set([first.table, second.table])])}: ${missed.access.actor} changed ` +
              `${describeRows(missed)} and ${describeRows(seen)} in one transaction (committed in ${nameOf(missed.committed)}); ` +
              `${actor} read the one before it (${stepName(first.access)}) and the other after it (${stepName(second.access)}).`,
          }
        }
    }
  return undefined
}

function belongTogether({ reads, writes }: History, first: Read, second: Read): boolean {
  const [a, b] = [first.access, second.access]
  if (a.unit !== b.unit || a.step >= b.step || a.signature === b.signature) return false
  // A unit that reads the first table again has a result that fits the second.
  const again = reads.some(
    (read) => read.access.unit === a.unit && read.table === first.table && read.access.step > b.step,
  )
  const isReport = !writes.some((write) => write.access.unit === a.unit)
  return !again && (a.transaction === b.transaction || isReport)
}
