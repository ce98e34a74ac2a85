import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { parseAst } from 'rolldown/parseAst'
import { mutate } from './markers.mjs'

/**
 * One guard of the contract: how to remove it, and the tests that must notice.
 *
 * `tests` are names of test files without folder and `.test.ts`. The marked code is deleted, unless one of these says otherwise:
 * - `to`: the code in its place;
 * - `from` and `to`: a part of the marked code, and what stands in its place;
 * - `if`: the value of its condition;
 * - `lastFirst`: the last of the marked lines of SQL runs before the others.
 *
 * @typedef {{
 *   guard: string,
 *   to?: string,
 *   from?: string | RegExp,
 *   if?: boolean,
 *   lastFirst?: boolean,
 *   what: string,
 *   tests: string[],
 * }} Mutation
 */

/** @returns {Promise<Mutation[]>} */
export async function readMutations(root) {
  const folder = join(root, 'test/mutations')
  const modules = await Promise.all(
    readdirSync(folder)
      .filter((file) => file.endsWith('.mjs'))
      .sort()
      .map((file) => import(pathToFileURL(join(folder, file)).href)),
  )
  return modules.flatMap((module) => module.default)
}

/** The test files of these names, in whichever folders they are. */
export function findTests(root, names) {
  const files = readdirSync(join(root, 'src'), { recursive: true }).map((file) => file.replaceAll('\\', '/'))
  return names.flatMap((name) =>
    files.filter((file) => `/${file}`.endsWith(`/${name}.test.ts`)).map((file) => `src/${file}`),
  )
}

/**
 * Every guard has one marker and every marker one entry; each mutation fits its code and leaves code that parses, and its tests
 * exist.
 */
export function checkMutations(root, mutations, { places, problems }) {
  const guards = mutations.map(({ guard }) => guard)
  return [
    ...problems,
    ...guards
      .filter((guard, n) => guards.indexOf(guard) !== n)
      .map((guard) => `"${guard}" has two entries in test/mutations`),
    ...places
      .filter(({ guard }) => !guards.includes(guard))
      .map(({ guard, file }) => `${file} marks "${guard}", which has no entry in test/mutations`),
    ...mutations.flatMap((mutation) => checkMutation(root, mutation, places)),
  ]
}

function checkMutation(root, mutation, places) {
  const { guard, tests } = mutation
  const found = places.filter((place) => place.guard === guard)
  const missing = tests.filter((test) => findTests(root, [test]).length === 0)
  return [
    ...(found.length === 0 ? [`"${guard}" has no marker in src/ or sql/`] : []),
    ...(found.length > 1 ? [`"${guard}" has ${found.length} markers: ${found.map(nameOf).join(', ')}`] : []),
    ...(found.length === 1 ? checkChange(root, found[0], mutation) : []),
    ...(tests.length === 0 ? [`"${guard}" names no test`] : []),
    ...missing.map((test) => `"${guard}" names a test that does not exist: ${test}`),
  ]
}

function checkChange(root, place, mutation) {
  const changed = mutate(readFileSync(join(root, place.file), 'utf8'), place, mutation)
  if (changed === undefined) return [`"${place.guard}" changes nothing at ${nameOf(place)}`]
  if (!place.file.endsWith('.ts')) return []
  try {
    parseAst(changed, { lang: 'ts' })
    return []
  } catch {
    return [`"${place.guard}" leaves code that does not parse at ${nameOf(place)}`]
  }
}

const nameOf = ({ file, first }) => `${file}:${first + 1}`
