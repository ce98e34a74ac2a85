import { METHODS } from 'node:http'
import type { Claim } from '../claims/claim.js'
import { readLease } from '../claims/once-spec.js'
import { InvalidInputError } from '../errors.js'
import { checkDuration, checkLifetime, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Tx } from '../postgres/executor.js'
import { type Json, MAX_JSON_BYTES } from '../postgres/json.js'
import { nameGiven } from '../postgres/name-given.js'
import type { Transaction } from '../postgres/transaction-types.js'
import { DEFAULT_STYLE, type Problem, type ProblemName, type ProblemStyle, problems } from './problem.js'
import { isRepeatable, replayedHeaders } from './response-parts.js'
import { readStorePolicy, type StorePolicy } from './store-policy.js'

/** Problems of rate limits, which have their own options. */
type RateProblem = 'rateLimited' | 'neverFits'
const rateProblems: readonly string[] = ['rateLimited', 'neverFits'] satisfies RateProblem[]

/** The owner of a key: tenant and user. Dibs escapes and joins the parts. */
export type RequestScope = string | readonly (string | number | bigint)[]

/** The options of the middleware. `R` is the type of the framework's request, `H` the transaction type of the option `transaction`. */
export interface IdempotencyOptions<R, H = Transaction> {
  /**
   * Returns the owner of the key: tenant and user, as your authentication has found them. Two owners never share a response. `'anonymous'`: all clients share
   * keys, so anybody who knows a key can get its response.
   */
  readonly scope: 'anonymous' | ((request: R) => RequestScope | Promise<RequestScope>)
  /**
   * `joined` (default): the handler gets a transaction, and its writes commit together with the response. `leased`: the handler gets a claim, for effects
   * outside of the database.
   */
  readonly mode?: 'joined' | 'leased' | undefined
  /** Whether a key is required. False: a request without a key runs each time. Default true. */
  readonly required?: boolean | undefined
  /** The methods that need a key. Default POST, PUT and PATCH. Requests with other methods pass through. */
  readonly methods?: readonly string[] | undefined
  /** The name of the header. Default `Idempotency-Key`. */
  readonly header?: string | undefined
  /** Reads the key from elsewhere than a header, such as the id of a webhook's event. Excludes `header`. */
  readonly key?:
    | ((request: R) => string | number | undefined | Promise<string | number | undefined>)
    | undefined
  /** A pattern for keys, such as that of a UUID. All keys have 1 to 255 characters. */
  readonly keyPattern?: RegExp | undefined
  /**
   * Normalizes the path, for routers that accept several spellings: Express and others ignore case and a trailing slash. Gets the path without its query. The
   * result replaces the path in the scope and in the fingerprint. Default: the path as the client sent it.
   */
  readonly normalizePath?: ((path: string) => string) | undefined
  /** Returns what must be the same in a repetition, as JSON, in place of method, path, query and body. Excludes `fingerprintHeaders`. */
  readonly fingerprint?: ((request: R) => unknown) | undefined
  /** Headers that must also be the same in a repetition. Default none. */
  readonly fingerprintHeaders?: readonly string[] | undefined
  /** How long to wait for another request with the same key. 0: respond with 409 at once. Must be less than `deadlineMs`. Default 0. */
  readonly waitMs?: number | undefined
  /** How long a response is kept. After that the key counts as new. Default 24 hours. */
  readonly keepMs?: number | undefined
  /** How long the client waits for the handler. Default 30,000. */
  readonly deadlineMs?: number | undefined
  /** Leased: how long after its last renewal a process counts as dead. Default 30,000. */
  readonly leaseMs?: number | undefined
  /** Leased: after this many attempts without a recorded outcome, the request has failed. Default 5. */
  readonly maxAttempts?: number | undefined
  /** Leased: what to do if an earlier attempt has no recorded outcome. A function may find out, and return the response. Default `retry`. */
  readonly onAmbiguous?:
    | 'retry'
    | 'hold'
    | ((claim: Claim, request: R) => 'retry' | 'hold' | Response | Promise<'retry' | 'hold' | Response>)
    | undefined
  /** Which responses are stored. Default `final`. */
  readonly store?: StorePolicy | undefined
  /** Joined: the statuses after which the handler's writes are kept. Default: below 400. */
  readonly keepsWrites?: ((status: number) => boolean) | undefined
  /** Headers to replay in addition to the default ones. Never `set-cookie`, nor headers that belong to one connection. */
  readonly replayHeaders?: readonly string[] | undefined
  /** The maximum request body in bytes, where no parser of the framework has read it before: `dibs/http`, `dibs/node` and Hono. Default 1,048,576. */
  readonly maxRequestBytes?: number | undefined
  /** The maximum response body in bytes that is stored. Default 262,144; at most 700,000. */
  readonly maxResponseBytes?: number | undefined
  /** Stores a reference to a larger response, and rebuilds the response from it. Without this option, a larger response is refused. */
  readonly large?: LargeResponses<R> | undefined
  /** Replaces the default statuses of problems, by name. */
  readonly statuses?: Readonly<Partial<Record<Exclude<ProblemName, RateProblem>, number>>> | undefined
  /** The prefix of problem types. Default `urn:dibs:problem:`. */
  readonly problemTypes?: string | undefined
  /** Returns the body of a problem in your own format. */
  readonly problemBody?: ((problem: Problem) => unknown) | undefined
  /** Joined: runs the handler in a transaction of your own library. The handler gets it as `claimed(request, transaction).tx`. */
  readonly transaction?: OwnTransaction<H> | undefined
  /** Returns the id of the request, for events and logs. */
  readonly requestId?: ((request: R) => string | undefined) | undefined
}

/** How to rebuild a response body that is too large to store. The body is rebuilt for the first caller and for later ones. */
export interface LargeResponses<R> {
  /** Returns a reference from which `rebuild` can make the response, as JSON. Called before the commit. */
  readonly reference: (
    response: { readonly status: number; readonly headers: Headers },
    request: R,
  ) => Json | Promise<Json>
  /** Makes the response from the reference. The status, and headers that `rebuild` does not set, are those of the first response. */
  readonly rebuild: (reference: Json, request: R) => Response | Promise<Response>
}

/**
 * Runs `work` in a transaction of your own library, commits when `work` resolves and rolls back when it rejects. `H` is the type of that
 * library's transaction:
 *
 * `const inKysely: OwnTransaction<KyselyTransaction<Shop>> = (work) => db.transaction().execute((trx) => work(fromKysely(trx), trx))`
 *
 * The function also identifies the type: `claimed(request, inKysely).tx` is a `KyselyTransaction<Shop>`.
 */
export type OwnTransaction<H = unknown> = (work: (tx: Tx, handle: H) => Promise<void>) => Promise<unknown>

/** Options after their checks, with defaults. */
export interface ReadOptions<R>
  extends Required<
      Omit<IdempotencyOptions<R, unknown>, 'statuses' | 'problemTypes' | 'problemBody' | 'store' | Optional>
    >,
    Pick<IdempotencyOptions<R, unknown>, Optional> {
  readonly stores: (status: number) => boolean
  readonly style: ProblemStyle
}

type Optional = 'key' | 'keyPattern' | 'normalizePath' | 'fingerprint' | 'large' | 'transaction' | 'requestId'

/** A stored response, in base64 and with its headers, must fit into an outcome. */
const MAX_RESPONSE_BYTES = 700_000
if ((MAX_RESPONSE_BYTES * 4) / 3 + 65_536 > MAX_JSON_BYTES) throw new RangeError('MAX_RESPONSE_BYTES')

export const DEFAULT_RESPONSE_BYTES = 262_144

const defaults = {
  mode: 'joined',
  required: true,
  methods: ['POST', 'PUT', 'PATCH'],
  header: 'Idempotency-Key',
  fingerprintHeaders: [],
  waitMs: 0,
  keepMs: 24 * 3_600_000,
  deadlineMs: 30_000,
  leaseMs: 30_000,
  maxAttempts: 5,
  onAmbiguous: 'retry',
  store: 'final',
  keepsWrites: (status: number): boolean => status < 400,
  replayHeaders: [],
  maxRequestBytes: 1_048_576,
  maxResponseBytes: DEFAULT_RESPONSE_BYTES,
  statuses: {},
} as const

const optional = [
  'scope',
  'key',
  'keyPattern',
  'normalizePath',
  'fingerprint',
  'large',
  'problemTypes',
  'problemBody',
  'transaction',
  'requestId',
]
const leasedOnly = ['leaseMs', 'maxAttempts', 'onAmbiguous'] as const
const joinedOnly = ['keepsWrites', 'transaction'] as const

export function readOptions<R>(options: IdempotencyOptions<R, unknown>): ReadOptions<R> {
  checkOptions(options, [...Object.keys(defaults), ...optional])
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined))
  const { store, statuses, problemTypes, problemBody, ...read } = {
    ...defaults,
    ...given,
  } as unknown as Required<IdempotencyOptions<R, unknown>>
  checkScope(read.scope)
  checkMode(read.mode, given)
  if (typeof read.required !== 'boolean')
    throw new InvalidInputError('required', `must be true or false, not ${nameGiven(read.required)}`)
  const names = {
    header: [read.header],
    fingerprintHeaders: read.fingerprintHeaders,
    replayHeaders: read.replayHeaders,
  }
  for (const [field, list] of Object.entries(names)) checkHeaderNames(field, list)
  for (const name of [
    'key',
    'normalizePath',
    'fingerprint',
    'keepsWrites',
    'transaction',
    'requestId',
    'problemBody',
  ] as const)
    checkFunction(name, given[name])
  if (read.keyPattern !== undefined && !(read.keyPattern instanceof RegExp))
    throw new InvalidInputError(
      'keyPattern',
      `must be a regular expression, not ${nameGiven(read.keyPattern)}`,
    )
  checkDuration('waitMs', read.waitMs, 0, MAX_TIMER_MS)
  checkLifetime('keepMs', read.keepMs)
  checkDuration('deadlineMs', read.deadlineMs, 1, MAX_TIMER_MS)
  if (read.waitMs >= read.deadlineMs)
    throw new InvalidInputError('waitMs', `must be less than deadlineMs, which is ${read.deadlineMs}`)
  checkPairs(given)
  if (problemTypes !== undefined && typeof problemTypes !== 'string')
    throw new InvalidInputError('problemTypes', `must be a text, not ${nameGiven(problemTypes)}`)
  readLease({ leaseMs: read.leaseMs, maxAttempts: read.maxAttempts, onAmbiguous: read.onAmbiguous as never })
  checkSize('maxResponseBytes', read.maxResponseBytes, MAX_RESPONSE_BYTES)
  checkSize('maxRequestBytes', read.maxRequestBytes, Number.MAX_SAFE_INTEGER)
  checkLarge(read.large)
  return {
    ...read,
    methods: checkMethods(read.methods),
    header: read.header.toLowerCase(),
    fingerprintHeaders: read.fingerprintHeaders.map((name) => name.toLowerCase()).toSorted(),
    replayHeaders: checkReplayed(read.replayHeaders),
    stores: readStorePolicy(store),
    style: {
      statuses: checkStatuses(statuses),
      base: problemTypes ?? DEFAULT_STYLE.base,
      body: problemBody,
    },
  }
}

function checkScope(scope: unknown): void {
  if (scope === 'anonymous' || typeof scope === 'function') return
  throw new InvalidInputError(
    'scope',
    `must be a function that says whose keys they are, such as (request) => [tenant, user], or 'anonymous' if everybody is to share them; not ${nameGiven(scope)}`,
  )
}

function checkMode(mode: unknown, given: Record<string, unknown>): void {
  if (mode !== 'joined' && mode !== 'leased')
    throw new InvalidInputError('mode', `must be 'joined' or 'leased', not ${JSON.stringify(mode)}`)
  const foreign = (mode === 'joined' ? leasedOnly : joinedOnly).find((name) => given[name] !== undefined)
  if (foreign) throw new InvalidInputError(foreign, `is no option in mode '${mode}'`)
}

/** Refuses two options for the same purpose, because one would have no effect. */
function checkPairs(given: Record<string, unknown>): void {
  for (const [one, two] of [
    ['fingerprintHeaders', 'fingerprint'],
    ['header', 'key'],
  ] as const)
    if (given[one] !== undefined && given[two] !== undefined)
      throw new InvalidInputError(one, `does nothing beside \`${two}\`; give one`)
}

function checkFunction(field: string, given: unknown): void {
  if (given !== undefined && typeof given !== 'function')
    throw new InvalidInputError(field, `must be a function, not ${nameGiven(given)}`)
}

function checkHeaderNames(field: string, list: unknown): void {
  if (!Array.isArray(list))
    throw new InvalidInputError(field, `must be a list of names, not ${nameGiven(list)}`)
  const wrong = list.find((name) => typeof name !== 'string' || !/^[\w!#$%&'*+.^`|~-]+$/.test(name))
  if (wrong !== undefined)
    throw new InvalidInputError(field, `has what is no name of a header: ${JSON.stringify(wrong)}`)
}

function checkReplayed(names: readonly string[]): readonly string[] {
  const lower = names.map((name) => name.toLowerCase())
  const wrong = lower.find((name) => !isRepeatable(name))
  if (wrong !== undefined)
    throw new InvalidInputError(
      'replayHeaders',
      `has "${wrong}", which belongs to one client or one connection and is never replayed`,
    )
  return [...new Set([...replayedHeaders, ...lower])]
}

function checkMethods(methods: unknown): readonly string[] {
  if (!Array.isArray(methods) || methods.length === 0)
    throw new InvalidInputError('methods', `must be a list such as ['POST'], not ${nameGiven(methods)}`)
  const upper = methods.map((method) => String(method).toUpperCase())
  const unknown = upper.find((method) => !METHODS.includes(method))
  if (unknown !== undefined)
    throw new InvalidInputError('methods', `has what is no method: ${JSON.stringify(unknown)}`)
  const wrong = upper.find((method) => ['GET', 'HEAD', 'OPTIONS', 'TRACE', 'CONNECT'].includes(method))
  if (wrong) throw new InvalidInputError('methods', `has ${wrong}, which changes nothing and needs no key`)
  return upper
}

function checkSize(field: string, bytes: unknown, most: number): void {
  if (Number.isSafeInteger(bytes) && Number(bytes) >= 0 && Number(bytes) <= most) return
  throw new InvalidInputError(field, `must be a number of bytes from 0 to ${most}, not ${String(bytes)}`)
}

function checkLarge(large: unknown): void {
  if (large === undefined) return
  checkOptions(large, ['reference', 'rebuild'])
  for (const name of ['reference', 'rebuild'] as const) {
    const given = (large as Record<string, unknown>)[name]
    if (typeof given !== 'function')
      throw new InvalidInputError(`large.${name}`, `must be a function, not ${nameGiven(given)}`)
  }
}

export function checkStatus(field: string, status: unknown): void {
  if (Number.isInteger(status) && Number(status) >= 400 && Number(status) <= 599) return
  throw new InvalidInputError(field, `must be a status from 400 to 599, not ${String(status)}`)
}

function checkStatuses(statuses: unknown): Readonly<Partial<Record<ProblemName, number>>> {
  checkOptions(
    statuses,
    Object.keys(problems).filter((name) => !rateProblems.includes(name)),
  )
  for (const [name, status] of Object.entries(statuses as object)) checkStatus(`statuses.${name}`, status)
  return statuses as Readonly<Partial<Record<ProblemName, number>>>
}
