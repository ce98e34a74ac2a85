import { execFileSync, spawnSync } from 'node:child_process'
import { statSync } from 'node:fs'
import { EmbeddedServerError } from '../../errors.js'

export interface ServerUser {
  readonly uid: number
  readonly gid: number
  readonly name: string
}

/**
 * The user that the server runs as if this process runs as root, since PostgreSQL refuses to run as root. An existing data folder
 * keeps its owner, as the server requires. Undefined if this process is not root.
 */
export function serverUser(folder: string, data: string): ServerUser | undefined {
  if (process.getuid?.() !== 0) return undefined
  const owner = statSync(data, { throwIfNoEntry: false })
  if (owner && owner.uid !== 0) return { uid: owner.uid, gid: owner.gid, name: `user ${owner.uid}` }
  const found = unprivilegedUser()
  if (found) return found
  throw new EmbeddedServerError(
    'PostgreSQL does not run as root, and neither user "postgres" nor "nobody" exists to run it as. Create one, or start this process as another user.',
    'no-permission',
    folder,
  )
}

export function unprivilegedUser(): ServerUser | undefined {
  for (const name of ['postgres', 'nobody']) {
    try {
      const id = (flag: string): number =>
        Number(execFileSync('id', [flag, name], { stdio: ['ignore', 'pipe', 'ignore'] }))
      return { uid: id('-u'), gid: id('-g'), name: `user "${name}"` }
    } catch {
      // No such user.
    }
  }
  return undefined
}

/** For messages: `user "alice" (1000)`. */
export function nameUser(uid: number): string {
  const { status, stdout } = spawnSync('id', ['-nu', String(uid)], { encoding: 'utf8' })
  return status === 0 ? `user "${stdout.trim()}" (${uid})` : `user ${uid}`
}

/** Tries to enter the folder, since its mode does not show access lists, supplementary groups and parent folders. */
export function canEnter(folder: string, { uid, gid }: ServerUser): boolean {
  return (
    spawnSync('sh', ['-c', 'cd "$1"', 'sh', folder], { uid, gid, cwd: '/', stdio: 'ignore' }).status === 0
  )
}
