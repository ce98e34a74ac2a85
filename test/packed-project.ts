import { execFile } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'

const root = join(import.meta.dirname, '..')
const run = promisify(execFile)

export interface PackedProject {
  /** The project: an empty folder with `node_modules` and a `package.json`. The caller removes it. */
  readonly folder: string
  /** The package as the project sees it. */
  readonly installed: string
  readonly tarball: string
  readonly unpackedSize: number
  readonly files: readonly { readonly path: string }[]
}

/**
 * Packs the package as it would be published, and installs it in a project of its own. Its dependencies are those of this
 * repository: nothing is downloaded. Needs what `npm run build` has built.
 */
export async function createPackedProject(manifest: object = { name: 'consumer' }): Promise<PackedProject> {
  const folder = mkdtempSync(join(tmpdir(), 'dibs-package-'))
  const { stdout } = await run('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', folder], {
    cwd: root,
  })
  const { filename, unpackedSize, files } = JSON.parse(stdout)[0]
  const tarball = join(folder, filename)
  const installed = join(folder, 'node_modules/dibs')
  mkdirSync(installed, { recursive: true })
  await run('tar', ['xzf', tarball, '-C', installed, '--strip-components=1'])
  for (const name of readdirSync(join(root, 'node_modules')))
    symlinkSync(join(root, 'node_modules', name), join(folder, 'node_modules', name))
  writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest))
  return { folder, installed, tarball, unpackedSize, files }
}
