import { readdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { isAlive } from './process-identity.js'

/** Removes files that end with the number of a process: drafts of one that was killed before it could rename them. */
export function removeLitter(folder: string): void {
  for (const name of readdirSync(folder)) {
    const pid = Number(name.match(/\.(\d+)$/)?.[1])
    if (!pid || isAlive(pid)) continue
    try {
      rmSync(join(folder, name), { recursive: true, force: true })
    } catch {
      // An initdb of a keeper that was killed is still writing; the next time, then.
    }
  }
}
