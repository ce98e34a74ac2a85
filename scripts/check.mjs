// Everything about the tree that can be checked without a database. Runs on the built package.
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { checkArrows, findCircles, readGraph } from './imports.mjs'

const root = join(import.meta.dirname, '..')
process.chdir(root)
let failed = false

function check(name, problems) {
  console.log(`${problems.length === 0 ? 'ok  ' : 'FAIL'} ${name}`)
  for (const problem of problems) console.log(`     ${problem}`)
  failed ||= problems.length > 0
}

function command(name, ...args) {
  const { status, stdout, stderr } = spawnSync('npx', ['--no-install', ...args], { encoding: 'utf8' })
  check(name, status === 0 ? [] : `${stdout}${stderr}`.trim().split('\n'))
}

command('types', 'tsc', '--noEmit', '-p', 'tsconfig.json')
command('format and lint', 'biome', 'ci', '--colors=off', '--error-on-warnings', '.')
command('package exports and files agree', 'publint', '--strict')

const source = join(root, 'src')
const modules = readdirSync(source, { recursive: true }).filter((file) =>
  /(?<!\.test|\.test-d|\.soak)\.ts$/.test(file),
)
const graph = readGraph(
  source,
  modules.map((file) => join(source, file)),
)
check('imports go down only', checkArrows(graph))
check('no import circle', findCircles(graph))

const { exports } = JSON.parse(readFileSync('package.json', 'utf8'))
const entries = Object.values(exports).flatMap((entry) =>
  typeof entry === 'string' ? [entry] : Object.values(entry),
)
check(
  'every export has its file and loads',
  (
    await Promise.all(
      entries.map(async (entry) => {
        if (!existsSync(entry)) return `${entry} is missing`
        if (!entry.endsWith('.js')) return undefined
        return import(join(root, entry)).then(
          () => undefined,
          (error) => `${entry}: ${error}`,
        )
      }),
    )
  ).filter(Boolean),
)

function script(name, file) {
  const { status, stderr } = spawnSync(process.execPath, [file], { encoding: 'utf8' })
  check(name, status === 0 ? [] : stderr.trim().split('\n'))
}

script('docs/errors.md fits the registry', 'scripts/errors-page.mjs')
script('examples in comments and guides compile', 'scripts/check-examples.mjs')

process.exitCode = failed ? 1 : 0
