import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { isAlive } from './process-identity.js'
import { removeTree } from './remove-tree.js'

/** File names of Dibs only, since the folder may contain other files. */
const draft =
  /^(?:server\.json|WHERE-THE-DATA-IS\.txt|data\.new|password|[0-9a-f]{16}(?:\.temporary)?)\.(\d+)$/

/** Removes drafts whose name ends with the pid of a process that was killed before it renamed them. */
export function removeStaleDrafts(folder: string): void {
  for (const name of readdirSync(folder)) {
    const pid = Number(name.match(draft)?.[1])
    if (!pid || isAlive(pid)) continue
    try {
      removeTree(join(folder, name))
    } catch {
      // The initdb of a killed supervisor still writes this draft. A later call removes it.
    }
  }
}
