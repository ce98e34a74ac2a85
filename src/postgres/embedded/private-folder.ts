import { lstatSync, mkdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'

/** Node cuts longer paths of sockets off without a word (at 107 bytes on Linux, 103 on macOS). */
const LONGEST_SOCKET = 103
const NAME_LENGTH = 'e3b0c44298fc1c14.4294967295.sock'.length

/** A folder for temporary files that this user alone may enter, for a process that serves `folder`. */
export function privateFolder(folder: string): string {
  const uid = process.getuid?.() ?? 0
  const places = [tmpdir(), '/tmp'].map((place) => join(place, `dibs-${uid}`))
  const path =
    places.find((place) => Buffer.byteLength(place) + 1 + NAME_LENGTH <= LONGEST_SOCKET) ?? `/tmp/dibs-${uid}`
  try {
    mkdirSync(path, { recursive: true, mode: 0o700 })
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error)
    throw new EmbeddedServerError(
      `The keeper of the embedded PostgreSQL needs a folder for temporary files: ${why}. Set TMPDIR to a place that you may write to.`,
      'no-permission',
      folder,
      { cause: error },
    )
  }
  if (isPrivate(path, uid)) return path
  throw new EmbeddedServerError(
    `${path} must be a folder of yours that others may not enter (mode 0700), because whoever can write there could pose as your database. Remove it, or set TMPDIR to a place of your own.`,
    'no-permission',
    folder,
  )
}

/** A folder of this user's that others may not enter, and not a link to one. */
export function isPrivate(path: string, uid: number | undefined): boolean {
  try {
    const found = lstatSync(path)
    return found.isDirectory() && found.uid === uid && (found.mode & 0o077) === 0
  } catch {
    return false // nothing is there
  }
}
