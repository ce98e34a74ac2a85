import { readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { findPostmaster, stopPostmaster } from './postmaster.js'
import { processIdentity } from './process-identity.js'
import { removeTree } from './remove-tree.js'
import { isListening, supervisorAddress } from './supervisor-address.js'

/**
 * Marks a temporary server, so that others can stop and remove it if both its process and its supervisor were killed.
 * The mark is in the folder of the supervisors' sockets, where no other user can write.
 */
interface Mark {
  readonly folder: string
  /** The folder of its data. */
  readonly dir: string
  /** The identity of the process that is responsible for the server: first its owner, then its supervisor. */
  readonly keptBy: string | undefined
  /** When another process first found that the process in `keptBy` is gone. */
  readonly suspectedAt?: number
}

const SUFFIX = '.temporary'
/** Longer than a process takes to start a new supervisor. */
export const SUSPICION_MS = 5_000

const markOf = (folder: string): string => supervisorAddress(folder).replace(/\.sock$/, SUFFIX)

/** Records that this process takes care of the server. A failure matters only if this process is killed. */
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

/** Stops and removes servers whose process in `keptBy` has been gone for some seconds. Each supervisor of a temporary server does this from time to time. */
export async function sweepTemporary(folder: string): Promise<void> {
  for (const mark of await findAbandoned(dirname(supervisorAddress(folder)))) {
    if (mark.suspectedAt === undefined) writeMark({ ...mark, suspectedAt: Date.now() })
    else if (Date.now() - mark.suspectedAt > SUSPICION_MS) {
      const found = findPostmaster(join(mark.dir, 'data'))
      if (found) await stopPostmaster(found, { discard: true })
      removeTemporary(mark.folder, mark.dir)
      rmSync(supervisorAddress(mark.folder), { force: true })
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
      if (!isKept && !(await isListening(supervisorAddress(mark.folder)))) found.push(mark)
    } catch {
      // Just removed.
    }
  }
  return found
}
