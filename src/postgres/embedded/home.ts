import { existsSync, mkdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'
import { folderHash } from './folder-hash.js'
import { checkFolderOwner, checkLinkOwner } from './folder-owner.js'
import { readOwn, replaceFile } from './own-file.js'
import { canEnter, type ServerUser, serverUser } from './server-user.js'

/** Where root keeps what the server's user could not reach. */
export const ROOTS_PLACE = '/var/lib/dibs'

/** Where an embedded server lives. */
export interface Home {
  /** The folder that was asked for, by its real path. */
  readonly folder: string
  /** The folder itself, or one elsewhere when the server's user cannot enter it. */
  readonly dir: string
  readonly data: string
  readonly log: string
  readonly user: ServerUser | undefined
}

/** Ours alone: a note could name any folder. */
const isPlace = new RegExp(`^${ROOTS_PLACE}/[0-9a-f]{16}(?:-\\d+)?$`)

const NOTE = 'WHERE-THE-DATA-IS.txt'

/**
 * Finds or makes the home of a folder. As root the server runs as another user; a folder that this user cannot
 * enter, such as a checkout below root's own, keeps a note that leads elsewhere.
 */
export function prepareHome(folder: string): Home {
  checkFolderOwner(folder)
  const user = serverUser(folder, join(folder, 'data'))
  const noted = user && readNote(folder)
  if (noted) {
    writeNote(folder, noted, user)
    return at(folder, noted)
  }
  if (!user || canEnter(folder, user)) return at(folder, folder)
  if (existsSync(join(folder, 'data'))) {
    throw new EmbeddedServerError(
      `${folder} has data of ${user.name}, who cannot enter the folder any more. Let others enter it and those above it (chmod o+x).`,
      'no-permission',
      folder,
    )
  }
  const dir = newPlace(folder)
  mkdirSync(dir, { recursive: true, mode: 0o755 })
  writeNote(folder, dir, user)
  return at(folder, dir)
}

function at(folder: string, dir: string): Home {
  const data = join(dir, 'data')
  checkLinkOwner(data, folder)
  return { folder, dir, data, log: join(dir, 'postgres.log'), user: serverUser(folder, data) }
}

/** Where the note of a folder leads. A folder that was moved keeps its data; a copy of one does not share it. */
function readNote(folder: string): string | undefined {
  const dir = placeNoted(folder)
  return dir && existsSync(dir) && !belongsToAnother(dir, folder) ? dir : undefined
}

function newPlace(folder: string): string {
  const hash = folderHash(folder)
  for (let n = 1; n <= 100; n++) {
    const dir = join(ROOTS_PLACE, n === 1 ? hash : `${hash}-${n}`)
    if (!belongsToAnother(dir, folder) && !isLeftOver(dir, folder)) return dir
  }
  throw new EmbeddedServerError(`Too many places begin with ${ROOTS_PLACE}/${hash}.`, 'unknown', folder)
}

/** Another folder, one that still is there, has its data in `dir`. */
function belongsToAnother(dir: string, folder: string): boolean {
  const owner = readText(join(dir, 'folder'))?.trim() ?? folder
  return owner !== folder && placeNoted(owner) === dir
}

/** The data of a folder that was removed and is made anew: whoever removed it meant to begin anew. */
function isLeftOver(dir: string, folder: string): boolean {
  return existsSync(join(dir, 'data')) && !existsSync(join(folder, 'server.json'))
}

function placeNoted(folder: string): string | undefined {
  const dir = readText(join(folder, NOTE))?.split('\n')[1]?.trim()
  return dir && isPlace.test(dir) ? dir : undefined
}

/** Undefined also for a file that another user has put there. */
function readText(file: string): string | undefined {
  try {
    return readOwn(file, dirname(file))?.toString()
  } catch {
    return undefined
  }
}

function writeNote(folder: string, dir: string, user: ServerUser): void {
  replaceFile(join(dir, 'folder'), `${folder}\n`, 0o644)
  replaceFile(
    join(folder, NOTE),
    `The data of the embedded PostgreSQL of this folder is in
${dir}
PostgreSQL does not run as root, so it runs as ${user.name}, who cannot enter
${folder}
To begin anew, stop what uses it and remove this folder; then the other is not needed any more.
`,
    0o644,
  )
}
