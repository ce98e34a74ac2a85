// docs/defaults.md: docs/defaults.head.md, and one section for each option table of the built package.
// Types and descriptions come from the interfaces in src. --write writes the page, else it is compared. In CI it is only compared.
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import { pathToFileURL } from 'node:url'
import { Types } from './conventions/types.mjs'

const root = join(import.meta.dirname, '..')

/** The order of the sections: folders of src. Folders that are not named here come last. */
const FOLDERS = [
  'claims',
  'locks',
  'single-flight',
  'tables',
  'jobs',
  'ops',
  'http',
  'server',
  'postgres',
  'testing',
]

/** The declarations `export const … = optionTable<…>()` of a file, with the type and the place of each. */
export function findTables(types, file) {
  return [...types.exportsOf(file)].flatMap(([name, { nodes, file: declaredIn }]) => {
    const call = nodes[0]?.init?.callee
    if (declaredIn !== file || call?.callee?.name !== 'optionTable') return []
    const type = call.typeArguments?.params[0]
    return type ? [{ name, file, type: { node: type, file }, start: nodes[0].start }] : []
  })
}

/** The section about one table, or nothing if the calls have no options. */
export function renderTable(types, { type }, table) {
  const members = types.fieldMembersOf(type)
  const rows = Object.entries(table.fields).map(([name, option]) =>
    renderRow(name, option, describeMember(types, members.get(name))),
  )
  if (rows.length === 0) return ''
  // `dibs.once, dibs.tryOnce with mode leased`: each word with a dot is a call.
  return `### ${table.title.replace(/\w+(\.\w+)+/g, '`$&`')}

| option | type | default | bounds | |
|---|---|---|---|---|
${rows.join('\n')}
`
}

function renderRow(name, option, { type, text }) {
  const hasDefault = 'default' in option && option.default !== undefined
  const shown = hasDefault ? showDefault(name, option.default) : option.isRequired ? '*required*' : '–'
  // The column says it.
  const description = hasDefault ? text.replace(/(^|\s)Default:? [^.]+\.(?=\s|$)/, '').trim() : text
  const cells = [`\`${name}\``, type && `\`${type}\``, shown, option.bounds ?? '', description]
  return `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`
}

const UNITS = { day: 86_400_000, h: 3_600_000, min: 60_000, s: 1_000 }

function showDefault(name, value) {
  // The name of this process, which differs in each.
  if (typeof value === 'string' && value.endsWith(`:${process.pid}`)) return 'host and process id'
  if (typeof value !== 'number')
    return `\`${typeof value === 'string' ? `'${value}'` : JSON.stringify(value)}\``
  if (value === Number.POSITIVE_INFINITY) return '`Infinity`'
  const [unit, ms] = Object.entries(UNITS).find(([, length]) => value >= length && value % length === 0) ?? []
  const count = value / ms
  const inWords =
    name.endsWith('Ms') && unit ? ` (${count} ${unit}${unit === 'day' && count > 1 ? 's' : ''})` : ''
  return `${value.toLocaleString('en-US')}${inWords}`
}

/** The type of a field as it is written, and the first paragraph of its doc comment. */
function describeMember(types, member) {
  if (!member) return { type: '', text: '' }
  const { node, file } = member
  const source = types.sourceOf(file)
  const written = node.typeAnnotation?.typeAnnotation
  const type = written
    ? source.slice(written.start, written.end)
    : node.type === 'TSMethodSignature'
      ? 'function'
      : ''
  const [, comment = ''] = source.slice(0, node.start).match(/\/\*\*((?:(?!\*\/)[\s\S])*)\*\/\s*$/) ?? []
  const lines = comment.split('\n').map((line) => line.replace(/^\s*\*? ?/, '').trim())
  const text = lines
    .join('\n')
    .trim()
    .split(/\n\n|\n@/)[0]
    .replaceAll('\n', ' ')
  return {
    type: type.replace(/\s+/g, ' ').replace(/^\| | \| undefined$/g, ''),
    text: /^@/.test(text) ? '' : text.replace(/\{@link (\w+)\}/g, '`$1`'),
  }
}

async function renderPage() {
  const { OptionTable } = await import('../build/options/option-table.js')
  const types = new Types((file) => readFileSync(file, 'utf8'))
  const source = join(root, 'src')
  const files = readdirSync(source, { recursive: true })
    .filter((file) => file.endsWith('.ts') && !/\.test\.ts$/.test(file))
    .sort((a, b) => rankOf(a) - rankOf(b) || (a < b ? -1 : 1))
    .map((file) => join(source, file))
    .filter((file) => readFileSync(file, 'utf8').includes('optionTable<'))
  /** By title: of two tables for one call, the one that has the options of both. */
  const sections = new Map()
  for (const file of files) {
    const built = join(root, 'build', relative(source, file).replace(/\.ts$/, '.js'))
    if (!existsSync(built)) continue
    const found = await import(pathToFileURL(built).href)
    for (const declared of findTables(types, file)) {
      const table = found[declared.name]
      if (!(table instanceof OptionTable)) continue
      const section = renderTable(types, declared, table)
      if (section.length > (sections.get(table.title) ?? '').length) sections.set(table.title, section)
    }
  }
  const head = readFileSync(join(root, 'docs/defaults.head.md'), 'utf8')
  return `<!-- Made from docs/defaults.head.md and the option tables in src by \`npm run docs\`. Do not edit. -->

${head.trim()}

## Options

Every call with options, as its table in the source checks them. Only \`undefined\` counts as left out. An unknown option is refused.
Durations (\`…Ms\`) are whole milliseconds.

${[...sections.values()].join('\n')}`
}

function rankOf(file) {
  const rank = FOLDERS.indexOf(file.split(/[\\/]/)[0])
  return rank < 0 ? FOLDERS.length : rank
}

if (process.argv[1] === import.meta.filename) {
  const file = join(root, 'docs/defaults.md')
  const page = await renderPage()
  const isStale = !existsSync(file) || readFileSync(file, 'utf8') !== page
  if (isStale && process.argv.includes('--write') && !process.env.CI) {
    writeFileSync(file, page)
    console.log('docs/defaults.md is written anew from the option tables in src. Commit it.')
  } else if (isStale) {
    console.error(
      'docs/defaults.md does not fit the option tables in src. Run `npm run docs`, and commit the page.',
    )
    process.exitCode = 1
  }
}
