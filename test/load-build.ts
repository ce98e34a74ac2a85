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
    // A compiled file outlives its source until the next `npm run build`.
    if (!existsSync(join(root, 'src', file.replace(/\.js$/, '.ts')))) return
    return { id: builtOf(file), external: true }
  },
}

/** Files that Vitest does not transform: the compiled ones. */
export const external = [new RegExp(`^${join(root, 'build')}${sep}`)]

/** Throws if a source file is newer than its compiled form, or that than the bundles: the tests would judge old code. */
export function requireFreshBuild(): void {
  const files = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
  const sources = files.filter((file) => file.endsWith('.ts') && !file.endsWith('.d.ts') && !isTestFile(file))
  const changedAt = (file: string): number => (existsSync(file) ? statSync(file).mtimeMs : 0)
  let newest = 0
  for (const file of sources) {
    const built = changedAt(builtOf(file.replace(/\.ts$/, '.js')))
    if (built < changedAt(join(root, 'src', file)))
      throw new Error(`src/${file} is newer than its compiled form. Run \`npm run build\` first.`)
    newest = Math.max(newest, built)
  }
  if (changedAt(join(root, 'dist/index.js')) < newest)
    throw new Error('dist/ is older than the compiled source. Run `npm run build` first.')
}
