import { existsSync, readdirSync, statSync } from 'node:fs'
import { dirname, join, relative, resolve, sep } from 'node:path'

const root = join(import.meta.dirname, '..')
const isTestFile = (file: string): boolean => /\.(test|soak)\.ts$/.test(file)

/** The compiled form of a file of `src/`, without its suffix. */
const builtOf = (file: string): string => join(root, 'build', file)

/**
 * Tests import the compiled form of `src/`, as their child processes do: Node.js loads that about ten times as fast as Vite
 * loads the source.
 */
export const loadBuild = {
  name: 'load-build',
  enforce: 'pre' as const,
  resolveId(source: string, importer: string | undefined) {
    if (!importer || !source.startsWith('.') || !source.endsWith('.js')) return
    const file = relative(join(root, 'src'), resolve(dirname(importer), source))
    if (file.startsWith('..') || !existsSync(builtOf(file))) return
    return { id: builtOf(file), external: true }
  },
}

/** Files that Vitest does not transform: the compiled ones. */
export const external = [new RegExp(`^${join(root, 'build')}${sep}`)]

/** Throws if a source file is newer than its compiled form: the tests would judge old code. */
export function requireFreshBuild(): void {
  const files = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
  const stale = files.find((file) => {
    if (!file.endsWith('.ts') || file.endsWith('.d.ts') || isTestFile(file)) return false
    const built = builtOf(file.replace(/\.ts$/, '.js'))
    return !existsSync(built) || statSync(built).mtimeMs < statSync(join(root, 'src', file)).mtimeMs
  })
  if (stale) throw new Error(`src/${stale} is newer than its compiled form. Run \`npm run build\` first.`)
}
