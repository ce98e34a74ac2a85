// Holds the public API to its conventions (CONTRIBUTING.md, "The conventions of the public API").
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { parseAst } from 'rolldown/parseAst'

/** Calls whose subject is the function, or the transaction; and types of functions that users write. */
const EXCEPTIONS = {
  callbackFirst: ['transaction', 'retryOnConflict'],
  /** Unions that are no results. */
  unions: ['ExpectedVersion'],
  positionalTx: ['guard', 'fromDrizzle', 'fromPrisma', 'UndoSlot', 'MonitorAction'],
}

/** Every one of these returns a page. */
const LISTS = ['list', 'dead']

/** Each of these claims has a form that throws and a form that returns a refusal. */
const CLAIMS = {
  Dibs: ['once', 'singleton', 'acquire', 'lock'],
  Quota: ['take', 'reserve'],
  RateLimit: ['take'],
}

/** Names that one meaning had before it had one name. */
const OLD_NAMES = {
  by: 'holder',
  wait: 'waitMs, where 0 does not wait',
  attempts: 'maxAttempts, in options',
  resetMs: 'resetsAt',
  granted: 'ok',
  claimed: 'ok',
  deleted: 'ok',
  voided: 'ok',
  refunded: 'replayed',
  added: 'created',
  after: 'cursor',
  next: 'nextCursor',
}

/** `ttlMs` says when stored data expires. A claim that must be renewed has `leaseMs`. */
const STORED_DATA = /^(Kv|SingleFlight)/

/** What happened (`attempts`) is no option. */
const NOT_OPTIONS = /^(DibsEvents|ConflictDetails|ConflictError)$/

/** JSON has no dates. */
const IS_JSON = /^ProblemBody$/

/**
 * Every breach of a convention in what `entry` exports.
 *
 * @param {string} entry the file whose exports are public
 * @param {(file: string) => string} read
 * @returns {string[]}
 */
export function findBreaches(entry, read = (file) => readFileSync(file, 'utf8')) {
  const declarations = publicDeclarations(entry, read)
  return [...declarations].flatMap(([name, { node, file }]) =>
    breachesOf(name, node).map((problem) => `${file}: ${problem}`),
  )
}

// ── what is public ───────────────────────────────────────────────────────────

function publicDeclarations(entry, read) {
  const found = new Map()
  const modules = new Map()
  const load = (file) => {
    if (!modules.has(file)) modules.set(file, parseAst(read(file), { lang: 'ts', sourceType: 'module' }).body)
    return modules.get(file)
  }
  const collect = (file, wanted) => {
    for (const statement of load(file)) {
      const from = statement.source && join(dirname(file), statement.source.value.replace(/\.js$/, '.ts'))
      if (statement.type === 'ExportAllDeclaration') collect(from, wanted)
      if (statement.type !== 'ExportNamedDeclaration') continue
      for (const specifier of statement.specifiers ?? []) {
        const [local, exported] = [specifier.local.name, specifier.exported.name]
        if (!wanted || wanted.has(exported)) collect(from ?? file, new Set([local]))
      }
      const { declaration } = statement
      if (!declaration) continue
      const names = declaration.declarations?.map(({ id }) => id.name) ?? [declaration.id?.name]
      for (const name of names)
        if (!wanted || wanted.has(name))
          found.set(name, { node: declaration, file: file.slice(file.indexOf('src/')) })
    }
  }
  collect(entry, undefined)
  return found
}

// ── what is checked ──────────────────────────────────────────────────────────

function breachesOf(name, node) {
  const problems = []
  for (const callable of callablesOf(name, node)) problems.push(...checkCallable(callable))
  for (const field of fieldsOf(node)) problems.push(...checkField(name, field))
  problems.push(...checkUnion(name, node), ...checkPairs(name, node))
  return problems
}

/** Public functions: methods of classes and interfaces, call signatures, exported functions and types of functions. */
function callablesOf(name, node) {
  const of = (label, fn) => ({ name: label, params: fn.params ?? [], returns: fn.returnType?.typeAnnotation })
  if (node.type === 'FunctionDeclaration' || node.type === 'TSDeclareFunction') return [of(name, node)]
  if (node.type === 'TSTypeAliasDeclaration')
    return node.typeAnnotation.type === 'TSFunctionType' ? [of(name, node.typeAnnotation)] : []
  return membersOf(node).flatMap((member) => {
    if (member.type === 'TSCallSignatureDeclaration') return [of(name, member)]
    if (member.type === 'TSMethodSignature') return [of(member.key.name, member)]
    if (member.type === 'MethodDefinition' && member.kind === 'method')
      return [of(member.key.name, member.value)]
    return []
  })
}

/** Members that a user can see. */
function membersOf(node) {
  const members = node.body?.body
  if (!Array.isArray(members)) return []
  return members.filter(
    ({ key, accessibility }) => key?.type !== 'PrivateIdentifier' && accessibility !== 'private',
  )
}

function fieldsOf(node) {
  const fields = []
  const visit = (type) => {
    if (!type) return
    const members = type.type === 'TSTypeLiteral' ? type.members : []
    for (const member of members)
      if (member.type === 'TSPropertySignature')
        fields.push({ name: member.key.name, type: member.typeAnnotation?.typeAnnotation })
    for (const part of type.types ?? [])
      visit(part.type === 'TSParenthesizedType' ? part.typeAnnotation : part)
    if (type.type === 'TSParenthesizedType') visit(type.typeAnnotation)
  }
  if (node.type === 'TSTypeAliasDeclaration') visit(node.typeAnnotation)
  for (const member of membersOf(node))
    if (['TSPropertySignature', 'PropertyDefinition'].includes(member.type))
      fields.push({ name: member.key.name, type: member.typeAnnotation?.typeAnnotation })
  return fields
}

const isFunction = (type) =>
  type?.type === 'TSFunctionType' || (type?.type === 'TSParenthesizedType' && isFunction(type.typeAnnotation))
const nameOfType = (type) => (type?.type === 'TSTypeReference' ? type.typeName.name : undefined)
const withoutUndefined = (type) => {
  if (type?.type !== 'TSUnionType') return type
  const parts = type.types.filter(({ type: kind }) => kind !== 'TSUndefinedKeyword')
  return parts.length === 1 ? parts[0] : { ...type, types: parts }
}

function checkCallable({ name, params, returns }) {
  const problems = []
  const given = params
    .map((param) => (param.type === 'AssignmentPattern' ? param.left : param))
    .map((param) => ({ name: param.name, type: withoutUndefined(param.typeAnnotation?.typeAnnotation) }))
  const isTx = (param) => param.name === 'tx' || ['Tx', 'Transaction'].includes(nameOfType(param.type))
  if (given.some(isTx) && !EXCEPTIONS.positionalTx.includes(name))
    problems.push(`${name}() takes a transaction as an argument; make it the field \`tx\` of the options`)
  const callback = given.findIndex(({ type }) => isFunction(type))
  if (callback !== -1 && callback !== given.length - 1 && !EXCEPTIONS.callbackFirst.includes(name))
    problems.push(
      `${name}() takes more arguments after its function \`${given[callback].name}\`; put that last`,
    )
  if (/^try[A-Z]/.test(name)) problems.push(...checkTry(name, returns))
  if (LISTS.includes(name) && !isPromiseOf(returns, 'Page'))
    problems.push(`${name}() must return Promise<Page<…>>, as every list does`)
  return problems
}

const isPromiseOf = (type, name) =>
  nameOfType(type) === 'Promise' && nameOfType(type.typeArguments?.params[0]) === name

/** A refusal is a union with `ok`, which has a name that ends in `Attempt` or `Answer`; a lock is null, so that `await using` works. */
function checkTry(name, returns) {
  const [result] = returns?.typeArguments?.params ?? []
  const isNull = result?.type === 'TSUnionType' && result.types.some(({ type }) => type === 'TSNullKeyword')
  if (isNull || /(Attempt|Answer)$/.test(nameOfType(result) ?? '')) return []
  return [`${name}() must return a union with \`ok\`, in a type whose name ends in Attempt`]
}

function checkField(owner, { name, type }) {
  const problems = []
  const plain = withoutUndefined(type)
  const say = (problem) => problems.push(`${owner}.${name} ${problem}`)
  if (!NOT_OPTIONS.test(owner) && Object.hasOwn(OLD_NAMES, name)) say(`must be named ${OLD_NAMES[name]}`)
  if (name === 'ttlMs' && !STORED_DATA.test(owner))
    say('must be named leaseMs: a claim that must be renewed has a lease; ttlMs is for stored data')
  if (
    /(timeout|delay|ttl|lease|interval|duration|deadline)$/i.test(name) &&
    plain?.type === 'TSNumberKeyword'
  )
    say('must end in Ms: it is a duration')
  if (/Ms$/.test(name) && plain?.type !== 'TSNumberKeyword') say('must be a number: it ends in Ms')
  if (/(At|Until)$/.test(name) && nameOfType(plain) !== 'Date' && !IS_JSON.test(owner)) say('must be a Date')
  if (name === 'fence' && plain?.type !== 'TSNumberKeyword') say('must be a number')
  if (
    /^(id|\w+Id)$/.test(name) &&
    !['TSStringKeyword', 'TSUnknownKeyword', 'TSUndefinedKeyword', 'TSNeverKeyword'].includes(plain?.type)
  ) {
    if (nameOfType(plain) !== 'RowId' && !isFunction(plain)) say('must be a string')
  }
  return problems
}

/** A union of results is told apart by `ok`, `created` or `replayed`. */
function checkUnion(name, node) {
  const union = node.type === 'TSTypeAliasDeclaration' ? node.typeAnnotation : undefined
  if (union?.type !== 'TSUnionType') return []
  const flags = union.types.map(flagsOf).filter((one) => one !== undefined)
  if (flags.length < 2 || EXCEPTIONS.unions.includes(name)) return []
  const common = flags[0].filter((flag) => flags.every((one) => one.includes(flag)))
  if (common.length === 0 || common.some((flag) => ['ok', 'created', 'replayed'].includes(flag))) return []
  return [
    `${name} is told apart by \`${common[0]}\`; name it ok (you have it), created (new) or replayed (stored)`,
  ]
}

/** The fields of one part of a union that are `true` or `false`. */
function flagsOf(part) {
  const type = part.type === 'TSParenthesizedType' ? part.typeAnnotation : part
  if (type.type === 'TSIntersectionType') return type.types.flatMap((one) => flagsOf(one) ?? [])
  if (type.type !== 'TSTypeLiteral') return undefined
  return type.members
    .filter(({ typeAnnotation }) => typeof typeAnnotation?.typeAnnotation?.literal?.value === 'boolean')
    .map(({ key }) => key.name)
}

function checkPairs(name, node) {
  const members = new Set(membersOf(node).map(({ key }) => key?.name))
  return (CLAIMS[name] ?? []).flatMap((claim) => {
    const other = `try${claim[0].toUpperCase()}${claim.slice(1)}`
    return [claim, other]
      .filter((method) => !members.has(method))
      .map(
        (method) =>
          `${name} has no ${method}(): a claim has a form that throws and a form that returns a refusal`,
      )
  })
}
