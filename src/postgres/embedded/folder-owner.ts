import { lstatSync, readlinkSync, statSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'
import { nameUser } from './server-user.js'

const isRoot = (): boolean => process.getuid?.() === 0

/**
 * As root, refuses a folder that another user can change: links there would make root write to files elsewhere. Parent
 * folders are not checked, because a container may mount a user's checkout. Their owners can replace the folder later.
 */
export function checkFolderOwner(folder: string): void {
  if (!isRoot()) return
  const found = statSync(folder)
  if (!found.isDirectory()) return // a file, on which the first write into the folder fails
  const { uid, gid, mode } = found
  if (uid !== 0) {
    throw refusal(
      folder,
      `${folder} belongs to ${nameUser(uid)}, and this process runs as root. Start it as that user, or choose another \`embedded.dir\`; if the folder should be root's, run \`chown root ${folder}\`.`,
    )
  }
  const [writers, change] =
    mode & 0o002 ? ['any user', 'o-w'] : mode & 0o020 && gid !== 0 ? [`group ${gid}`, 'g-w'] : []
  if (writers) {
    throw refusal(
      folder,
      `${folder} is a folder that ${writers} may write to, and this process runs as root. Choose a folder below it as \`embedded.dir\`, or run \`chmod ${change} ${folder}\`.`,
    )
  }
}

/** As root, refuses a symbolic link that another user made, and any link that leads to such a link. */
export function checkLinkOwner(path: string, folder: string): void {
  if (!isRoot()) return
  for (let at = path; ; at = resolve(dirname(at), readlinkSync(at))) {
    const found = lstatSync(at, { throwIfNoEntry: false })
    if (!found?.isSymbolicLink()) return
    if (found.uid === 0) continue
    throw refusal(
      folder,
      `${at} is a symbolic link that belongs to ${nameUser(found.uid)}, and this process runs as root. Remove the link, or name the folder that it should lead to in \`embedded.dir\`.`,
    )
  }
}

const refusal = (folder: string, message: string): EmbeddedServerError =>
  new EmbeddedServerError(message, 'no-permission', folder)
