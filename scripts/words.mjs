// The words that the project has retired, and a search for identifiers and file names that use them. See "Glossary" in CONTRIBUTING.md.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseAst } from 'rolldown/parseAst'

/** Retired in every identifier and file name. */
export const RETIRED = new Map(
  Object.entries({
    desk: 'manager, or what it manages',
    keeper: 'renewer, supervisor',
    ender: 'completer',
    bell: 'wake-up, notification',
    stray: 'orphaned',
    strays: 'orphans',
    surely: 'withRetries',
    doom: 'markForRollback',
    doomed: 'markedForRollback',
    lore: 'schemaInfo',
    ghost: 'halfOpen',
    sleeper: 'zombie',
    sleepers: 'sleepSet',
  }),
)

/** Retired as metaphors. As the name of a parameter or a local variable they may have their common meaning. */
export const RETIRED_IN_NAMES = new Map(
  Object.entries({
    look: 'poll, scan, read',
    looks: 'polls, scans, reads',
    told: 'result',
    asked: 'request, requested',
    given: 'input',
    scene: 'run',
    cast: 'actors',
    tale: 'timeline',
    course: 'execution',
    crossing: 'choicePoint',
    stage: 'session',
  }),
)

/** Phrases with the common meaning of a word: a lookup, to give up, what looks like another thing. */
const PHRASES = new Map([
  ['look', /^up$/],
  ['looks', /^(like|right|alone)$/],
  ['given', /^(up|back)$/],
])

/** `takeHTTPTurn_at2` → take, http, turn, at2 */
export const wordsOf = (name) =>
  name
    .replace(/([a-z\d])([A-Z])/g, '$1_$2')
    .replace(/([A-Z]+)([A-Z][a-z])/g, '$1_$2')
    .toLowerCase()
    .split(/[^a-z\d]+/)
    .filter((word) => word !== '')

const DECLARATIONS = {
  FunctionDeclaration: 'id',
  TSDeclareFunction: 'id',
  ClassDeclaration: 'id',
  TSInterfaceDeclaration: 'id',
  TSTypeAliasDeclaration: 'id',
  TSEnumDeclaration: 'id',
  MethodDefinition: 'key',
  PropertyDefinition: 'key',
  TSAbstractPropertyDefinition: 'key',
  TSAbstractMethodDefinition: 'key',
  TSPropertySignature: 'key',
  TSMethodSignature: 'key',
}

/** The identifiers that a source declares: `{ name, start, isLocal }`. Strings and names of others do not count. */
export function declaredIn(source, lang) {
  const found = []
  const addPattern = (node, isLocal) => {
    if (!node) return
    if (node.type === 'Identifier') found.push({ name: node.name, start: node.start, isLocal })
    else if (node.type === 'ObjectPattern') {
      // Without a new name, it is the name that another has declared.
      for (const { value, shorthand, argument } of node.properties)
        if (!shorthand) addPattern(argument ?? value, isLocal)
    } else if (node.type === 'ArrayPattern') for (const one of node.elements) addPattern(one, isLocal)
    else addPattern(node.left ?? node.argument ?? node.parameter, isLocal)
  }
  const visit = (node, depth) => {
    if (Array.isArray(node)) for (const one of node) visit(one, depth)
    if (typeof node?.type !== 'string') return
    const key = node[DECLARATIONS[node.type]]
    if (key && !node.computed && ['Identifier', 'PrivateIdentifier'].includes(key.type))
      found.push({ name: key.name, start: key.start, isLocal: false })
    if (node.type === 'VariableDeclarator') {
      const isFunction = /^(Arrow)?FunctionExpression$/.test(node.init?.type)
      addPattern(node.id, depth > 0 && !isFunction)
    }
    for (const param of Array.isArray(node.params) ? node.params : []) addPattern(param, true)
    const isBody = node.type === 'BlockStatement' || node.type === 'FunctionBody'
    for (const value of Object.values(node))
      if (typeof value === 'object') visit(value, depth + (isBody ? 1 : 0))
  }
  visit(parseAst(source, { lang, sourceType: 'module' }).body, 0)
  return found
}

/** The names that an SQL file declares: functions, tables, columns, parameters and variables. */
export function declaredInSql(source) {
  const code = source.replace(/--.*$/gm, (comment) => ' '.repeat(comment.length))
  const patterns = [
    [/create (?:unlogged )?(?:table|function|type|index|trigger) (?:\{schema\}\.)?(\w+)/g, false],
    [
      /^ {2}(\w+) (?:text|bigint|integer|json|jsonb|timestamptz|boolean|regclass|smallint|date|bigint\[\])\b/gm,
      false,
    ],
    [/\b([pv]_\w+)\b/g, true],
  ]
  return patterns.flatMap(([pattern, isLocal]) =>
    [...code.matchAll(pattern)].map((match) => ({
      name: match[1].replace(/^[pv]_/, ''),
      start: match.index,
      isLocal,
    })),
  )
}

/** Names with one of these words in its common meaning, each with the reason. */
const EXCEPTIONS = new Map(
  Object.entries({
    withoutCast: 'a cast of TypeScript or SQL',
    isUserCast: 'a cast of SQL',
    cast: 'a cast of SQL',
    'name-given': 'the value that a caller gave, in an error message',
    nameGiven: 'the value that a caller gave, in an error message',
    showGiven: 'the value that a caller gave, in an error message',
    'look-then-set': 'the name of a race in docs/races.md',
  }),
)

/** The uses of retired words in one file: `{ file, name, problem }`. */
export function findRetired(file, source) {
  const base = file.split('/').at(-1)
  const declared = file.endsWith('.sql')
    ? declaredInSql(source)
    : declaredIn(source, file.endsWith('.ts') ? 'ts' : 'js')
  const names = [{ name: base.replace(/\..*$/, ''), start: 0, isLocal: false }, ...declared]
  const uses = new Map()
  for (const { name, start, isLocal } of names) {
    const words = wordsOf(name)
    const found = words.find(
      (word, n) =>
        (RETIRED.has(word) || (!isLocal && RETIRED_IN_NAMES.has(word))) &&
        !PHRASES.get(word)?.test(words[n + 1] ?? ''),
    )
    if (found === undefined || EXCEPTIONS.has(name) || uses.has(name)) continue
    const line = source.slice(0, start).split('\n').length
    const instead = RETIRED.get(found) ?? RETIRED_IN_NAMES.get(found)
    const problem = `${file}:${line}: \`${name}\` has the retired word "${found}". Write: ${instead}`
    uses.set(name, { file, name, problem })
  }
  return [...uses.values()]
}

const FOLDERS = ['src', 'sql', 'test', 'examples']

/** Reports the uses of retired words in the tree, a line each. */
export function findRetiredWords(root) {
  const files = FOLDERS.flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' }).map((file) =>
      join(folder, file).replaceAll('\\', '/'),
    ),
  )
  return files
    .filter((file) => /\.(ts|mjs|js|sql)$/.test(file) && !/(^|\/)(generated|node_modules|dist)\//.test(file))
    .flatMap((file) => findRetired(file, readFileSync(join(root, file), 'utf8')))
    .map(({ problem }) => problem)
}
