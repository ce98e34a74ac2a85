import { existsSync, readdirSync, rmSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { sleep } from '../sleep.js'
import { prepareHome } from './home.js'
import { isAlive } from './is-alive.js'
import { answers } from './keeper-address.js'
import { findPostmaster, stopPostmaster } from './postmaster.js'
import { readRecord } from './server-record.js'

/** Also what names the folders of temporary servers. */
export const TEMPORARY = 'dibs-temporary-'

/** Longer than a process takes that lost its keeper to start another. */
const LOOK_AGAIN_MS = 5_000

/**
 * Ends temporary servers whose keeper and whose process were both killed, so that nobody is left to do it. Whoever
 * starts a temporary server looks for those of before, twice.
 */
export async function sweepTemporary(signal: AbortSignal): Promise<void> {
  const suspects = await findAbandoned(listTemporary())
  if (suspects.length === 0) return
  await sleep(LOOK_AGAIN_MS, signal)
  for (const folder of await findAbandoned(suspects)) {
    const { data, dir } = prepareHome(folder)
    const found = findPostmaster(data)
    if (found) await stopPostmaster(data, found, { discard: true })
    for (const place of [dir, folder]) rmSync(place, { recursive: true, force: true })
  }
}

function listTemporary(): string[] {
  const uid = process.getuid?.()
  return readdirSync(tmpdir())
    .filter((name) => name.startsWith(TEMPORARY))
    .map((name) => join(tmpdir(), name))
    .filter((folder) => statSync(folder, { throwIfNoEntry: false })?.uid === uid)
}

/** Those with a record of a keeper that neither lives nor answers. One that is just being made has no record yet. */
async function findAbandoned(folders: readonly string[]): Promise<string[]> {
  const found: string[] = []
  for (const folder of folders) {
    const keeper = existsSync(folder) ? readRecord(folder)?.keeper : undefined
    if (keeper && !isAlive(keeper.pid) && !(await answers(keeper.address))) found.push(folder)
  }
  return found
}
