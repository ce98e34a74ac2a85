// Everything about the tree that can be checked without a database. Runs on the built package.
import { execFile } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { findLongSubjects, readCommits } from './commits.mjs'
import { checkArrows, findCircles, readGraph } from './imports.mjs'
import { findAllPlaces } from './mutate/markers.mjs'
import { checkMutations, readMutations } from './mutate/read-mutations.mjs'
import { findRaces } from './promise-races.mjs'
import { findRetiredWords } from './words.mjs'

const root = join(import.meta.dirname, '..')
process.chdir(root)
let failed = false

function check(name, problems) {
  console.log(`${problems.length === 0 ? 'ok  ' : 'FAIL'} ${name}`)
  for (const problem of problems) console.log(`     ${problem}`)
  failed ||= problems.length > 0
}

/** Returns the output lines of a program that fails, and none if it succeeds. */
async function run(program, ...args) {
  try {
    await promisify(execFile)(program, args, { maxBuffer: 1 << 28 })
    return []
  } catch ({ stdout, stderr }) {
    return `${stdout}${stderr}`.trim().split('\n')
  }
}

/** These programs are independent, and each uses about one core: they run in parallel. */
const programs = {
  types: ['tsc', '--noEmit', '-p', 'tsconfig.json'],
  'types of what runs in a browser': ['tsc', '--noEmit', '-p', 'tsconfig.browser.json'],
  'types of the example with decorators': ['tsc', '--noEmit', '-p', 'examples/http/nest'],
  'format and lint': ['biome', 'ci', '--colors=off', '--error-on-warnings', '.'],
  'package exports and files agree': ['publint', '--strict'],
}
const scripts = {
  'docs/errors.md fits the registry': 'scripts/errors-page.mjs',
  'docs/defaults.md fits the option tables': 'scripts/options-page.mjs',
  'examples in comments and guides compile': 'scripts/check-examples.mjs',
}
const running = [
  ...Object.entries(programs).map(([name, args]) => [name, run('npx', '--no-install', ...args)]),
  ...Object.entries(scripts).map(([name, file]) => [name, run(process.execPath, file)]),
]

const source = join(root, 'src')
const modules = readdirSync(source, { recursive: true }).filter((file) =>
  /(?<!\.test|\.test-d|\.soak)\.ts$/.test(file),
)
check('no retired word in a name (the glossary of CONTRIBUTING.md)', findRetiredWords(root))
check('subjects of commits', findLongSubjects(readCommits(root)))

const graph = readGraph(
  source,
  modules.map((file) => join(source, file)),
)
check('imports go down only', checkArrows(graph))
check('no import circle', findCircles(graph))
check(
  'no race that keeps its results in memory',
  modules.map((file) => join('src', file)).flatMap((file) => findRaces(file, readFileSync(file, 'utf8'))),
)

const { exports } = JSON.parse(readFileSync('package.json', 'utf8'))
const targetsOf = (entry) => (typeof entry === 'string' ? [entry] : Object.values(entry).flatMap(targetsOf))
const entries = targetsOf(exports)
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

const pages = [
  'README.md',
  'CONTRIBUTING.md',
  'CHANGELOG.md',
  'examples/shop/README.md',
  ...readdirSync('docs')
    .filter((name) => name.endsWith('.md'))
    .map((name) => `docs/${name}`),
]
const links = pages.flatMap((page) =>
  [...readFileSync(page, 'utf8').matchAll(/(?:\]\(|<img src=")(?!https?:|#)([^)#"]+)/g)].map(([, target]) => [
    page,
    join(page, '..', target),
  ]),
)
const mentions = filesBelow('src')
  .filter((file) => !file.includes('/generated/') && !file.endsWith('.test.ts'))
  .flatMap((file) =>
    [...readFileSync(file, 'utf8').matchAll(/\bsql\/\d{4}_\w+\.sql/g)].map(([target]) => [file, target]),
  )
check(
  'links lead somewhere',
  [...links, ...mentions]
    .filter(([, target]) => !existsSync(target))
    .map(([from, target]) => `${from} leads to ${target}`),
)

check(
  'no half of a merge',
  ['src', 'test', 'examples', 'docs', 'bench', 'scripts', 'README.md', 'CONTRIBUTING.md', 'CHANGELOG.md']
    .flatMap((path) => (path.endsWith('.md') ? path : filesBelow(path)))
    .filter((file) => /^(?:<{7}|>{7}) /m.test(readFileSync(file, 'utf8'))),
)

function filesBelow(folder) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => join(parentPath, name))
}

const declarations = readdirSync('dist', { recursive: true })
  .filter((file) => file.endsWith('.d.ts'))
  .map((file) => readFileSync(join('dist', file), 'utf8'))
  .join('\n')
const values = (
  await Promise.all(
    entries.filter((entry) => entry.endsWith('.js')).map((entry) => import(join(root, entry))),
  )
).flatMap(Object.keys)
check(
  'every exported value has an @example',
  values.filter((name) => {
    const declared = declarations.search(
      new RegExp(`export declare (?:abstract )?(?:class|function|const) ${name}\\b`),
    )
    const comment = declarations.slice(0, declared).match(/\/\*\*(?:(?!\*\/)[\s\S])*\*\/\s*$/)?.[0] ?? ''
    return !comment.includes('@example')
  }),
)

check('a yield point between any two statements of a function', findMissingPoints())

/** Without one the explorer takes both for one step, and a race between them is not seen. */
function findMissingPoints() {
  const functions = readdirSync('sql')
    .filter((name) => name.endsWith('.sql'))
    .flatMap((file) =>
      [...readFileSync(`sql/${file}`, 'utf8').matchAll(/create function (\S+?)\([\s\S]*?\$\$([\s\S]*?)\$\$/g)]
        .filter(([whole]) => whole.includes('language plpgsql'))
        .map(([, name, body]) => ({ where: `sql/${file}: ${name}`, body })),
    )
  return functions.flatMap(({ where, body }) =>
    findUnparted(body).map((found) => `${where} before "${found}"`),
  )
}

/** Statements that touch a table with no point between them and the one before, in the order of the text. */
function findUnparted(body) {
  const missing = []
  let isParted = true
  for (const part of body.split(';')) {
    // Lines before the statement (`if … then`, comments) belong to the same part.
    const statement = part.match(
      /^ *(?:return query\s+)?((?:select|insert|update|delete|with|perform from)\b.*)/m,
    )
    const before = statement ? part.slice(0, statement.index) : part
    isParted ||= before.includes('-- point: ')
    if (!statement) continue
    if (!isParted) missing.push(statement[1])
    isParted = false
  }
  return missing
}

check(
  'every guard has one marker, every marker one mutation',
  checkMutations(root, await readMutations(root), findAllPlaces(root)),
)

for (const [name, problems] of running) check(name, await problems)

process.exitCode = failed ? 1 : 0
