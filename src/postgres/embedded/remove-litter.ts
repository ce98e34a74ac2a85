import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { isAlive } from './process-identity.js'
import { removeTree } from './remove-tree.js'

/** Names of ours alone: the folder may be one that has other things too. */
const draft =
  /^(?:server\.json|WHERE-THE-DATA-IS\.txt|data\.new|password|[0-9a-f]{16}(?:\.temporary)?)\.(\d+)$/

/** Removes drafts that end with the number of a process which was killed before it could rename them. */
export function removeLitter(folder: string): void {
  for (const name of readdirSync(folder)) {
    const pid = Number(name.match(draft)?.[1])
    if (!pid || isAlive(pid)) continue
    try {
      removeTree(join(folder, name))
    } catch {
      // An initdb of a keeper that was killed is still writing; the next time, then.
    }
  }
}
