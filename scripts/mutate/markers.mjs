// Markers tie a mutation to the code that implements a guard, so that renames and moves do not break it.
//   statement // guard: area.name            this line (SQL: `-- guard: area.name`); several names: `a.b, a.c`
//   // guard: area.name                      on a line of its own: the next line
//   // guard: area.name { … // guard: area.name }   each on a line of its own: the lines between
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

const MARKER = /^(.*?)\s*(?:\/\/|--) guard: ([a-z0-9-]+\.[a-z0-9-]+(?:, [a-z0-9-]+\.[a-z0-9-]+)*)( [{}])?$/
const LOOKS_LIKE_ONE = /(?:\/\/|--) guard:/

/**
 * The lines that implement a guard: from `first` to `last`, both included and counted from 0.
 *
 * @typedef {{ guard: string, file: string, first: number, last: number }} Place
 */

/** @returns {{ places: Place[], problems: string[] }} */
export function findPlaces(file, text) {
  const lines = text.split('\n')
  const places = []
  const problems = []
  const open = new Map()
  for (const [n, line] of lines.entries()) {
    if (!LOOKS_LIKE_ONE.test(line)) continue
    const at = `${file}:${n + 1}`
    const [, code, names, brace] = line.match(MARKER) ?? []
    if (names === undefined || (brace && code.trim() !== '')) {
      problems.push(`${at} has a marker that cannot be read`)
      continue
    }
    for (const guard of names.split(', ')) {
      if (!brace) {
        const marked = code.trim() === '' ? findCode(lines, n + 1) : n
        places.push({ guard, file, first: marked, last: marked })
      } else if (brace === ' {') {
        open.set(guard, n + 1)
      } else if (open.has(guard)) {
        places.push({ guard, file, first: open.get(guard), last: n - 1 })
        open.delete(guard)
      } else {
        problems.push(`${at} ends a block that has no start`)
      }
    }
  }
  for (const guard of open.keys()) problems.push(`${file}: the block "${guard}" has no end`)
  return { places, problems }
}

function findCode(lines, from) {
  const n = lines.findIndex((line, at) => at >= from && !LOOKS_LIKE_ONE.test(line))
  return n < 0 ? lines.length - 1 : n
}

/** All markers of a tree: those in `sql/` and in the code below `src/`, not those in tests and generated files. */
export function findAllPlaces(root) {
  const files = [
    ...below(root, 'sql', /\.sql$/),
    ...below(root, 'src', /(?<!\.test|\.test-d|\.soak)\.ts$/).filter((file) => !file.includes('/generated/')),
  ]
  const found = files.map((file) => findPlaces(file, readFileSync(join(root, file), 'utf8')))
  return {
    places: found.flatMap(({ places }) => places),
    problems: found.flatMap(({ problems }) => problems),
  }
}

function below(root, folder, name) {
  return readdirSync(join(root, folder), { recursive: true })
    .filter((file) => name.test(file))
    .map((file) => `${folder}/${file.replaceAll('\\', '/')}`)
}

/** The text without its markers: what a migration is applied from. */
export const withoutMarkers = (text) =>
  text.replace(/^[ \t]*(?:\/\/|--) guard: .*\n/gm, '').replace(/[ \t]*(?:\/\/|--) guard: .*$/gm, '')

/** The text with one guard removed, or `undefined` where the mutation does not fit the marked lines. */
export function mutate(text, place, mutation) {
  const lines = text.split('\n')
  const marked = lines.slice(place.first, place.last + 1)
  const code = withoutMarkers(marked.join('\n'))
  const changed = change(code, mutation)
  if (changed === undefined || changed === code) return undefined
  return [...lines.slice(0, place.first), changed, ...lines.slice(place.last + 1)].join('\n')
}

function change(code, mutation) {
  if (mutation.if !== undefined) return setCondition(code, mutation.if)
  if (mutation.lastFirst) return moveLastFirst(code)
  if (mutation.from === undefined) return mutation.to ?? ''
  return typeof mutation.from === 'string'
    ? code.replace(mutation.from, () => mutation.to)
    : code.replace(mutation.from, mutation.to)
}

/** `if (…)` in TypeScript, `if … then`, `case when … then` and `exit when …;` in SQL. */
function setCondition(code, value) {
  const start = code.search(/\bif \(/)
  if (start >= 0) {
    let depth = 0
    for (let at = start + 3; at < code.length; at++) {
      if (code[at] === '(') depth++
      if (code[at] === ')' && --depth === 0) return `${code.slice(0, start + 4)}${value}${code.slice(at)}`
    }
  }
  const whole =
    code.match(/^(\s*(?:if|elsif) )(.+)( then)$/) ?? code.match(/^(\s*(?:exit|continue) when )(.+)(;)$/)
  const part = whole ?? code.match(/^(.*?\b(?:if|elsif|when) )(.+?)( then\b.*| and \(|\s*)$/)
  return part ? `${part[1]}${value}${part[3]}` : undefined
}

/** With a yield point between them, so that the explorer can interleave here. */
function moveLastFirst(code) {
  const lines = code.split('\n')
  const last = lines.pop()
  return [last, '  -- point: out of order', ...lines].join('\n')
}
