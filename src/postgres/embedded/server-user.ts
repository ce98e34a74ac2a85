import { execFileSync, spawnSync } from 'node:child_process'
import { statSync } from 'node:fs'
import { EmbeddedServerError } from '../../errors.js'

export interface ServerUser {
  readonly uid: number
  readonly gid: number
  readonly name: string
}

/**
 * PostgreSQL refuses to run as root: whom to run it as then. Whoever owns the data stays its owner, since the server
 * takes no other. Undefined when we are not root and it runs as ourselves.
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

/** Tried for real, as modes alone do not tell: access lists, supplementary groups, parents further up. */
export function canEnter(folder: string, { uid, gid }: ServerUser): boolean {
  return (
    spawnSync('sh', ['-c', 'cd "$1"', 'sh', folder], { uid, gid, cwd: '/', stdio: 'ignore' }).status === 0
  )
}
