// The rules of the public API (CONTRIBUTING.md, "The conventions of the public API") that can be read from types.
import { isNamed, membersOf, nameOf } from './types.mjs'

/** Each exception has its reason. */
const EXCEPTIONS = {
  callbackFirst: {
    transaction: 'the function is the subject',
    retryOnConflict: 'the function is the subject',
  },
  positionalTx: {
    guard: 'the transaction is the subject',
    fromDrizzle: 'the transaction is the subject',
    fromPrisma: 'the transaction is the subject',
  },
  requiredOptions: {
    idempotent: '`scope` has no default',
    rateLimited: '`subject` has no default',
    idempotency: 'Fastify decides what a plugin takes',
  },
  /** Unions that are not results. */
  unions: {
    ExpectedVersion: 'is the content of a header',
  },
  fields: {
    'RawQuery.queryId': 'Kysely decides what a query has',
  },
  onLiterals: {
    'OnceClaimSpec.onAmbiguous': 'narrows `LeasedSpec.onAmbiguous`, which may be a function',
  },
  /** Arrays in place of a page. */
  boundedArrays: {
    'Kv.getMany()': 'one element per key',
    'Jobs.addMany()': 'one element per job',
    'TableRows.lock()': 'one row per id',
    'TableRows.claim()': 'at most `limit` rows',
    'Aggregate.recompute()': 'one row per id',
    'Locks.inspect()': 'one element per permit',
  },
}

const isExcepted = (rule, name) => Object.hasOwn(EXCEPTIONS[rule], name)

/** Every one of these takes a filter and a page, and returns a page. */
const LISTS = ['list', 'dead']

/** Each of these claims has a form that throws and a form that returns a refusal. */
const CLAIMS = {
  Dibs: ['once', 'singleton', 'acquire', 'lock'],
  Quota: ['take', 'reserve'],
  RateLimit: ['take'],
  Operation: ['run'],
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
  late: 'ifLate',
  maxLoadMs: 'timeoutMs',
}

/** The values that an option whose name begins with `if` accepts. */
const VERBS = [
  ...['wait', 'fail', 'skip', 'allow', 'load', 'serve-stale'],
  ...['take', 'overdraw', 'free', 'keep', 'local'],
]

/** `ttlMs` says when stored data expires. A claim that must be renewed has `leaseMs`. */
const STORED_DATA = /^(Kv|SingleFlight)/

/** `attempts` may count what happened: in results, and in the details of errors. */
const ERROR_DETAILS = /^\w+Details\b/

/** JSON has no dates. */
const IS_JSON = /^Problem(Body)?\b/

// ── calls ────────────────────────────────────────────────────────────────────

/**
 * The breaches of one signature of a call that users make.
 *
 * @param call its name, its path (`Claims.list()`), its parameters, its result and all its overloads
 * @param {import('./types.mjs').Types} types
 */
export function checkCall(call, types) {
  return [
    ...checkTransaction(call, types),
    ...checkCallback(call, types),
    ...checkResult(call, types),
    ...checkTry(call, types),
    ...checkList(call, types),
  ]
}

function checkTransaction({ name, params }, types) {
  const isTx = (param) =>
    param.name === 'tx' || types.namesOf(param.type).some((one) => ['Tx', 'Transaction'].includes(one))
  if (!params.some(isTx) || isExcepted('positionalTx', name)) return []
  return ['takes a transaction as an argument; make it the field `tx` of the options']
}

/** The subject, then options that may be left out, then the function. */
function checkCallback({ name, params, overloads }, types) {
  const isCallback = (param) => param?.type !== undefined && types.signaturesOf(param.type).length > 0
  const callback = params.findIndex(isCallback)
  if (callback === -1) return []
  if (callback !== params.length - 1)
    return isExcepted('callbackFirst', name)
      ? []
      : [`takes more arguments after its function \`${params[callback].name}\`; put that last`]
  const isRequired = ({ isOptional, type }) =>
    !isOptional && type && !types.partsOf(type).some(({ node }) => node.type === 'TSUndefinedKeyword')
  const [options] = params.slice(1, -1).filter((param) => isOptions(param, types) && isRequired(param))
  const isLeftOut = overloads.some(
    (other) => other.params.length < params.length && isCallback(other.params.at(-1)),
  )
  if (!options || isLeftOut || isExcepted('requiredOptions', name)) return []
  return [`requires \`${options.name}\` before its function; options may be left out`]
}

function isOptions({ name, type }, types) {
  if (name === 'options') return true
  const values = types.valuesOf(type)
  const kinds = ['TSTypeLiteral', 'TSInterfaceDeclaration', 'TSIntersectionType']
  return values.length > 0 && values.every(({ node }) => kinds.includes(node.type))
}

/** A result says what its values mean. A list that can grow is a page. */
function checkResult({ name, path, isMember, returns }, types) {
  if (!returns || !isMember || /^(is|has)[A-Z]/.test(name)) return []
  const isPromise = isNamed(types.expand(returns), 'Promise')
  const kinds = types.valuesOf(types.awaited(returns)).map(({ node }) => node)
  const isBare = kinds.some(
    ({ type, literal }) =>
      type === 'TSBooleanKeyword' ||
      typeof literal?.value === 'boolean' ||
      (isPromise && type === 'TSNumberKeyword'),
  )
  if (isBare) return ['returns a bare boolean or number; return an object such as { ok }']
  const isArray = kinds.some((node) => node.type === 'TSArrayType' || /^(Readonly)?Array$/.test(nameOf(node)))
  if (isPromise && isArray && !LISTS.includes(name) && !isExcepted('boundedArrays', path))
    return ['returns a list that can grow; return Promise<Page<…>>']
  return []
}

/** A refusal is a member of a union with `ok`. A lock is null, so that `await using` works. */
function checkTry({ name, returns }, types) {
  if (!/^try[A-Z]/.test(name)) return []
  const parts = returns ? types.partsOf(types.awaited(returns)) : []
  if (parts.some(({ node }) => node.type === 'TSNullKeyword')) return []
  const values = parts.map((part) => types.booleanOf(types.fieldsOf(part).get('ok')))
  if (!values.includes(undefined) && values.includes(true) && values.includes(false)) return []
  return ['must return a union with `ok`: true or false in each member, or null']
}

function checkList({ name, params, returns }, types) {
  if (!LISTS.includes(name)) return []
  const problems = []
  const [page] = (returns && types.expand(returns).node.typeArguments?.params) ?? []
  if (!returns || !isNamed(types.expand(returns), 'Promise') || nameOf(page) !== 'Page')
    problems.push('must return Promise<Page<…>>, as every list does')
  const fields = params[1]?.type ? types.fieldsOf(params[1].type) : new Map()
  const isPaged = fields.has('limit') && fields.has('cursor')
  if (params.length !== 2 || params[0].name !== 'filter' || params[1].name !== 'page' || !isPaged)
    problems.push('must take (filter, page), where the page has `limit` and `cursor`')
  return problems
}

/** The breaches of one parameter, also of a callback. */
export function checkParameter({ name, type }, types) {
  const problems = isNumber(type, types) ? checkDurationName(name) : []
  if (types.namesOf(type).includes('AbortSignal'))
    problems.push('is an AbortSignal as an argument; make it the field `signal` of an object')
  return problems
}

// ── fields ───────────────────────────────────────────────────────────────────

/**
 * The breaches of one field, getter or parameter property.
 *
 * @param field its name, its path (`LockOptions.holder`), its type, and whether Dibs gives it to the user
 * @param {import('./types.mjs').Types} types
 */
export function checkField(field, types) {
  if (isExcepted('fields', field.path)) return []
  return [...checkName(field), ...(field.type ? checkType(field, types) : [])]
}

function checkName({ name, path, isResult }) {
  const isCount = name === 'attempts' && (isResult || ERROR_DETAILS.test(path))
  if (Object.hasOwn(OLD_NAMES, name) && !isCount) return [`must be named ${OLD_NAMES[name]}`]
  if (name === 'ttlMs' && !STORED_DATA.test(path))
    return ['must be named leaseMs: a claim that must be renewed has a lease; ttlMs is for stored data']
  return []
}

const isNumber = (type, types) => {
  const values = types.valuesOf(type)
  return (
    values.length > 0 &&
    values.every(
      ({ node }) => node.type === 'TSNumberKeyword' || typeof (node.literal ?? node).value === 'number',
    )
  )
}

function checkDurationName(name) {
  if (/(^s|S)econds$/.test(name)) return ['must be in milliseconds, with a name that ends in Ms']
  if (/(timeout|delay|ttl|lease|interval|duration|deadline)$/i.test(name))
    return ['must end in Ms: it is a duration']
  return []
}

/** Times are dates, durations are numbers of milliseconds, ids are strings, fences are numbers. */
function checkType({ name, path, type }, types) {
  const values = types.valuesOf(type)
  const problems = checkVerbs(name, path, values)
  const areNumbers = values.every((value) => isNumber(value, types))
  const areDates = values.length > 0 && values.every((value) => isNamed(value, 'Date'))
  if (areNumbers) problems.push(...checkDurationName(name))
  if (areNumbers && name === 'ms') problems.push('must say which duration it is, with a name that ends in Ms')
  if (/Ms$/.test(name) && !areNumbers) problems.push('must be a number: it ends in Ms')
  if (/(At|Until)$/.test(name) && !areDates && !IS_JSON.test(path)) problems.push('must be a Date')
  if (areDates && !/(At|Until|Ms)$/.test(name) && !['since', 'from'].includes(name))
    problems.push('must end in At or Until, or be `since` or `from`: it is a time')
  if (name === 'fence' && !areNumbers) problems.push('must be a number')
  if (/^(id|\w+Id)$/.test(name) && !values.every(isId) && !types.namesOf(type).includes('RowId'))
    problems.push('must be a string')
  return problems
}

const ID_TYPES = ['TSStringKeyword', 'TSUnknownKeyword', 'TSNeverKeyword', 'TSTemplateLiteralType']

function isId({ node }) {
  return ID_TYPES.includes(node.type) || typeof node.literal?.value === 'string' || node.params !== undefined
}

/** `if…` asks for something, by a verb. `on…` is a function. */
function checkVerbs(name, path, values) {
  const literals = values.map(({ node }) => node.literal?.value)
  if (literals.length === 0 || literals.some((one) => typeof one !== 'string')) return []
  if (/^if[A-Z]/.test(name))
    return literals
      .filter((one) => !VERBS.includes(one))
      .map((one) => `must not be '${one}': use one of ${VERBS.join(', ')}`)
  if (/^(on|when)[A-Z]/.test(name) && !isExcepted('onLiterals', path))
    return ['must be named if…: it says what to do, and is not a function']
  return []
}

// ── unions and pairs ─────────────────────────────────────────────────────────

/** The members of a union of results are told apart by `ok`, `created` or `replayed`. */
export function checkUnion(type, path, types) {
  const isOneType = type.node.types.filter(({ type: kind }) => !/Undefined|Null/.test(kind)).length < 2
  if (isOneType || isExcepted('unions', path)) return []
  const flags = types.valuesOf(type).flatMap((part) => {
    const fields = types.fieldsOf(part)
    const isFlag = (name) => types.booleanOf(fields.get(name)) !== undefined
    return fields.size > 0 ? [[...fields.keys()].filter(isFlag)] : []
  })
  const common = (flags[0] ?? []).filter((flag) => flags.every((one) => one.includes(flag)))
  if (flags.length < 2 || common.length === 0) return []
  if (common.some((flag) => ['ok', 'created', 'replayed'].includes(flag))) return []
  return [`is told apart by \`${common[0]}\`; name it ok (you have it), created (new) or replayed (stored)`]
}

export function checkPairs(name, node) {
  const members = new Set(membersOf(node).map(({ key }) => key?.name))
  return (CLAIMS[name] ?? []).flatMap((claim) =>
    [claim, `try${claim[0].toUpperCase()}${claim.slice(1)}`]
      .filter((method) => !members.has(method))
      .map(
        (method) => `has no ${method}(): a claim has a form that throws and a form that returns a refusal`,
      ),
  )
}
