import { existsSync, mkdirSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'
import { checkFolderOwner, checkLinkOwner } from './folder-owner.js'
import { readOwnFile, replaceFile } from './own-file.js'
import { folderHash } from './private-folder.js'
import { canEnter, type ServerUser, serverUser } from './server-user.js'

/** Where root keeps data whose folder the user of the server cannot enter. */
export const ROOT_DATA_FOLDER = '/var/lib/dibs'

/** The paths of an embedded server. */
export interface ServerPaths {
  /** The real path of the requested folder. */
  readonly folder: string
  /** The folder itself, or another one if the user of the server cannot enter it. */
  readonly dir: string
  readonly data: string
  readonly log: string
  readonly user: ServerUser | undefined
}

/** Folders of Dibs, since a note could name any folder. */
const isPlace = new RegExp(`^${ROOT_DATA_FOLDER}/[0-9a-f]{16}(?:-\\d+)?$`)

const NOTE = 'WHERE-THE-DATA-IS.txt'

/**
 * Finds or makes the folders of a server. If this process runs as root, the server runs as another user. Some folders
 * are closed to that user, such as one below root's home. Such a folder gets a note that says where its data is.
 */
export function prepareServerPaths(folder: string): ServerPaths {
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

function at(folder: string, dir: string): ServerPaths {
  const data = join(dir, 'data')
  checkLinkOwner(data, folder)
  return { folder, dir, data, log: join(dir, 'postgres.log'), user: serverUser(folder, data) }
}

/** The folder that a note names. The data follows a moved folder, but a copy of the folder does not share the data. */
function readNote(folder: string): string | undefined {
  const dir = placeNoted(folder)
  return dir && existsSync(dir) && !belongsToAnother(dir, folder) ? dir : undefined
}

function newPlace(folder: string): string {
  const hash = folderHash(folder)
  for (let n = 1; n <= 100; n++) {
    const dir = join(ROOT_DATA_FOLDER, n === 1 ? hash : `${hash}-${n}`)
    if (!belongsToAnother(dir, folder) && !isLeftOver(dir, folder)) return dir
  }
  throw new EmbeddedServerError(`Too many places begin with ${ROOT_DATA_FOLDER}/${hash}.`, 'unknown', folder)
}

/** True if another folder that exists has its data in `dir`. */
function belongsToAnother(dir: string, folder: string): boolean {
  const owner = readText(join(dir, 'folder'))?.trim() ?? folder
  return owner !== folder && placeNoted(owner) === dir
}

/** True if `dir` has data of an earlier folder with the same path, which the user has removed. */
function isLeftOver(dir: string, folder: string): boolean {
  return existsSync(join(dir, 'data')) && !existsSync(join(folder, 'server.json'))
}

function placeNoted(folder: string): string | undefined {
  const dir = readText(join(folder, NOTE))?.split('\n')[1]?.trim()
  return dir && isPlace.test(dir) ? dir : undefined
}

/** Returns undefined if the file is missing or another user has put it there. */
function readText(file: string): string | undefined {
  try {
    return readOwnFile(file, dirname(file))?.toString()
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
To begin anew, stop the processes that use it and remove this folder. Then the other folder is not needed any more.
`,
    0o644,
  )
}
