import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { sleep } from '../sleep.js'
import { answers, keeperAddress } from './keeper-address.js'
import { findPostmaster, stopPostmaster } from './postmaster.js'
import { isAlive } from './process-identity.js'

/**
 * What is left of temporary servers when their keeper and their process were both killed: a file for each beside the
 * keepers' sockets, where nobody else can write, says what to end and to remove.
 */
interface TemporaryServer {
  readonly folder: string
  /** Where it keeps its data. */
  readonly dir: string
  readonly keeper: number
}

const SUFFIX = '.temporary'
/** Longer than a process takes that lost its keeper to start another. */
const LOOK_AGAIN_MS = 5_000

const markOf = (folder: string): string => keeperAddress(folder).replace(/\.sock$/, SUFFIX)

export function markTemporary(server: TemporaryServer): void {
  writeFileSync(markOf(server.folder), JSON.stringify(server))
}

export function removeTemporary({ folder, dir }: Pick<TemporaryServer, 'folder' | 'dir'>): void {
  for (const place of [dir, folder]) rmSync(place, { recursive: true, force: true })
  rmSync(markOf(folder), { force: true })
}

/** Whoever keeps a temporary server looks for those that nobody keeps any more, twice. */
export async function sweepTemporary(folder: string, signal: AbortSignal): Promise<void> {
  const place = dirname(keeperAddress(folder))
  const suspects = await findAbandoned(place)
  if (suspects.length === 0) return
  await sleep(LOOK_AGAIN_MS, signal)
  const known = new Set(suspects.map((suspect) => suspect.folder))
  for (const server of await findAbandoned(place)) {
    if (!known.has(server.folder)) continue
    const found = findPostmaster(join(server.dir, 'data'))
    if (found) await stopPostmaster(found, { discard: true })
    removeTemporary(server)
  }
}

async function findAbandoned(place: string): Promise<TemporaryServer[]> {
  const found: TemporaryServer[] = []
  for (const name of readdirSync(place).filter((entry) => entry.endsWith(SUFFIX))) {
    try {
      const server: TemporaryServer = JSON.parse(readFileSync(join(place, name), 'utf8'))
      if (!isAlive(server.keeper) && !(await answers(keeperAddress(server.folder)))) found.push(server)
    } catch {
      // Just being written, or removed.
    }
  }
  return found
}
