import { readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { answers, keeperAddress } from './keeper-address.js'
import { findPostmaster, stopPostmaster } from './postmaster.js'
import { processIdentity } from './process-identity.js'
import { removeTree } from './remove-tree.js'

/**
 * What is left of temporary servers when their keeper and their process were both killed: a mark for each beside the
 * keepers' sockets, where nobody else can write, says what to end and to remove.
 */
interface Mark {
  readonly folder: string
  /** Where it keeps its data. */
  readonly dir: string
  /** Who takes care of it: its process at first, then its keeper. */
  readonly keptBy: string | undefined
  /** When somebody first found that nobody does. */
  readonly suspectedAt?: number
}

const SUFFIX = '.temporary'
/** Longer than a process takes that lost its keeper to start another. */
export const SUSPICION_MS = 5_000

const markOf = (folder: string): string => keeperAddress(folder).replace(/\.sock$/, SUFFIX)

/** That this process takes care of it. Best effort: without a mark it is not found if we are killed. */
export function markTemporary(folder: string, dir = folder): void {
  try {
    writeMark({ folder, dir, keptBy: processIdentity(process.pid) })
  } catch {
    // A full disk.
  }
}

function writeMark(mark: Mark): void {
  const draft = `${markOf(mark.folder)}.${process.pid}`
  writeFileSync(draft, JSON.stringify(mark))
  renameSync(draft, markOf(mark.folder))
}

export function removeTemporary(folder: string, dir = folder): void {
  for (const place of [dir, folder]) removeTree(place)
  rmSync(markOf(folder), { force: true })
}

/** Ends what nobody takes care of, and did not some seconds ago. Whoever keeps a temporary server does it now and then. */
export async function sweepTemporary(folder: string): Promise<void> {
  for (const mark of await findAbandoned(dirname(keeperAddress(folder)))) {
    if (mark.suspectedAt === undefined) writeMark({ ...mark, suspectedAt: Date.now() })
    else if (Date.now() - mark.suspectedAt > SUSPICION_MS) {
      const found = findPostmaster(join(mark.dir, 'data'))
      if (found) await stopPostmaster(found, { discard: true })
      removeTemporary(mark.folder, mark.dir)
      rmSync(keeperAddress(mark.folder), { force: true })
    }
  }
}

async function findAbandoned(place: string): Promise<Mark[]> {
  const found: Mark[] = []
  for (const name of readdirSync(place).filter((entry) => entry.endsWith(SUFFIX))) {
    try {
      const mark: Mark = JSON.parse(readFileSync(join(place, name), 'utf8'))
      const pid = Number.parseInt(mark.keptBy ?? '', 10)
      const isKept = mark.keptBy !== undefined && processIdentity(pid) === mark.keptBy
      if (!isKept && !(await answers(keeperAddress(mark.folder)))) found.push(mark)
    } catch {
      // Just removed.
    }
  }
  return found
}
