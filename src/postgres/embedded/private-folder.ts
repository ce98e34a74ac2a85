import { createHash } from 'node:crypto'
import { lstatSync, mkdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'

/** Node.js truncates longer paths of sockets silently (at 107 bytes on Linux, 103 on macOS). */
const LONGEST_SOCKET = 103
const NAME_LENGTH = 'e3b0c44298fc1c14.4294967295.sock'.length

/** Makes a temporary folder that only this user may enter. `folder` is for the error. */
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
      `The supervisor of the embedded PostgreSQL needs a folder for temporary files: ${why}. Set TMPDIR to a place that you may write to.`,
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

/** True for a folder of this user that others may not enter. A link to one does not count. */
export function isPrivate(path: string, uid: number | undefined): boolean {
  try {
    const found = lstatSync(path)
    return found.isDirectory() && found.uid === uid && (found.mode & 0o077) === 0
  } catch {
    return false // nothing is there
  }
}

/** A short name for a folder, where its whole path is too long. */
export function folderHash(folder: string): string {
  return createHash('sha256').update(folder).digest('hex').slice(0, 16)
}
