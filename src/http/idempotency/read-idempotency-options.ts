import { METHODS } from 'node:http'
import { leaseFields } from '../../claims/once/once-spec.js'
import { PROBLEM_BASE } from '../../errors/problem-types.js'
import { InvalidInputError } from '../../errors.js'
import { checkLimit } from '../../options/check-amount.js'
import { checkFunction } from '../../options/check-function.js'
import { checkOptions } from '../../options/check-options.js'
import { MAX_TIMER_MS } from '../../options/max-timer-ms.js'
import { nameGiven, showGiven } from '../../options/name-given.js'
import { duration, lifetime, wholeNumber } from '../../options/number-options.js'
import { checked, required } from '../../options/option.js'
import { optionTable, type ReadOptions } from '../../options/option-table.js'
import { boolean, func, instance, oneOf, string } from '../../options/value-options.js'
import { MAX_JSON_BYTES } from '../../postgres/json.js'
import { type ProblemStyle, problems } from '../problem.js'
import type { IdempotencyOptions, LargeResponses } from './idempotency-options.js'
import { isRepeatable, replayedHeaders } from './response-parts.js'
import { checkStorePolicy, storePredicate } from './response-store-policy.js'

/** A stored response, in base64 and with its headers, must fit into an outcome. */
const MAX_RESPONSE_BYTES = 700_000
if ((MAX_RESPONSE_BYTES * 4) / 3 + 65_536 > MAX_JSON_BYTES) throw new RangeError('MAX_RESPONSE_BYTES')

export const DEFAULT_RESPONSE_BYTES = 262_144

export const largeResponsesOptions = optionTable<LargeResponses<never>>()('idempotency: large', {
  reference: required(func()),
  rebuild: required(func()),
})

export const idempotencyOptions = optionTable<IdempotencyOptions<never, unknown>>()(
  'idempotent, idempotency, @Idempotent',
  {
    scope: required(checked(checkScope)),
    mode: oneOf(['joined', 'leased'], { default: 'joined' }),
    required: boolean({ default: true }),
    methods: checked(checkMethods, { default: ['POST', 'PUT', 'PATCH'] }),
    header: checked(checkHeaderName, { default: 'Idempotency-Key' }),
    key: func(),
    keyPattern: instance(RegExp),
    normalizePath: func(),
    fingerprint: func(),
    fingerprintHeaders: checked(checkHeaderNames, { default: [] }),
    waitMs: duration({ default: 0, min: 0, max: MAX_TIMER_MS }),
    keepMs: lifetime({ default: 24 * 3_600_000 }),
    deadlineMs: duration({ default: 30_000, max: MAX_TIMER_MS }),
    leaseMs: leaseFields.leaseMs,
    maxAttempts: leaseFields.maxAttempts,
    onAmbiguous: checked(leaseFields.onAmbiguous.check, { default: 'retry' }),
    store: checked(checkStorePolicy, { default: 'final' }),
    keepsWrites: checked(checkFunction, { default: (status: number): boolean => status < 400 }),
    replayHeaders: checked(checkReplayHeaders, { default: [] }),
    maxRequestBytes: wholeNumber({ default: 1_048_576, min: 0 }),
    maxResponseBytes: wholeNumber({ default: DEFAULT_RESPONSE_BYTES, min: 0, max: MAX_RESPONSE_BYTES }),
    large: checked((field, value) => largeResponsesOptions.read(value as LargeResponses<never>, field)),
    statuses: checked(checkStatuses, { default: {} }),
    problemTypes: string({ default: PROBLEM_BASE }),
    problemBody: func(),
    transaction: func(),
    requestId: func(),
  },
)

/** The options after their checks, with defaults. */
export interface ReadIdempotencyOptions<R>
  extends ReadOptions<IdempotencyOptions<R, unknown>, typeof idempotencyOptions.fields> {
  readonly stores: (status: number) => boolean
  readonly style: ProblemStyle
}

const leasedOnly = ['leaseMs', 'maxAttempts', 'onAmbiguous'] as const
const joinedOnly = ['keepsWrites', 'transaction'] as const

/** Pairs of options that exclude each other: one of them would have no effect. */
const exclusive = [
  ['fingerprintHeaders', 'fingerprint'],
  ['header', 'key'],
] as const

export function readIdempotencyOptions<R>(
  options: IdempotencyOptions<R, unknown>,
): ReadIdempotencyOptions<R> {
  // The table does not know the type of the framework's request.
  const read = idempotencyOptions.read(
    options as IdempotencyOptions<never, unknown>,
  ) as unknown as ReadOptions<IdempotencyOptions<R, unknown>, typeof idempotencyOptions.fields>
  const foreign = (read.mode === 'joined' ? leasedOnly : joinedOnly).find(
    (name) => options[name] !== undefined,
  )
  if (foreign) throw new InvalidInputError(foreign, `is no option in mode '${read.mode}'`)
  for (const [one, two] of exclusive)
    if (options[one] !== undefined && options[two] !== undefined)
      throw new InvalidInputError(one, `has no effect beside \`${two}\`. Give only one of them`)
  if (read.waitMs >= read.deadlineMs)
    throw new InvalidInputError('waitMs', `must be less than deadlineMs, which is ${read.deadlineMs}`)
  return {
    ...read,
    methods: read.methods.map((method) => method.toUpperCase()),
    header: read.header.toLowerCase(),
    fingerprintHeaders: read.fingerprintHeaders.map((name) => name.toLowerCase()).toSorted(),
    replayHeaders: [
      ...new Set([...replayedHeaders, ...read.replayHeaders.map((name) => name.toLowerCase())]),
    ],
    stores: storePredicate(read.store),
    style: { statuses: read.statuses, base: read.problemTypes, body: read.problemBody },
  }
}

function checkScope(field: string, scope: unknown): void {
  if (scope === 'anonymous' || typeof scope === 'function') return
  throw new InvalidInputError(
    field,
    `must be a function that returns the owner of the key, such as (request) => [tenant, user], or 'anonymous' if all clients share keys; not ${nameGiven(scope)}`,
  )
}

function checkMethods(field: string, methods: unknown): void {
  if (!Array.isArray(methods) || methods.length === 0)
    throw new InvalidInputError(field, `must be a list such as ['POST'], not ${nameGiven(methods)}`)
  const upper = methods.map((method) => String(method).toUpperCase())
  const unknown = upper.find((method) => !METHODS.includes(method))
  if (unknown !== undefined)
    throw new InvalidInputError(field, `contains ${showGiven(unknown)}, which is not an HTTP method`)
  const safe = upper.find((method) => ['GET', 'HEAD', 'OPTIONS', 'TRACE', 'CONNECT'].includes(method))
  if (safe) throw new InvalidInputError(field, `has ${safe}, which changes nothing and needs no key`)
}

function checkHeaderName(field: string, name: unknown): void {
  if (typeof name !== 'string' || !/^[\w!#$%&'*+.^`|~-]+$/.test(name))
    throw new InvalidInputError(field, `must be the name of a header, not ${showGiven(name)}`)
}

function checkHeaderNames(field: string, names: unknown): asserts names is readonly string[] {
  if (!Array.isArray(names))
    throw new InvalidInputError(field, `must be a list of header names, not ${nameGiven(names)}`)
  for (const [n, name] of names.entries()) checkHeaderName(`${field}[${n}]`, name)
}

function checkReplayHeaders(field: string, names: unknown): void {
  checkHeaderNames(field, names)
  const wrong = names.find((name) => !isRepeatable(name.toLowerCase()))
  if (wrong !== undefined)
    throw new InvalidInputError(
      field,
      `has "${wrong}", which belongs to one client or one connection and is never replayed`,
    )
}

function checkStatuses(field: string, statuses: unknown): void {
  const { rateLimited, neverFits, ...own } = problems
  checkOptions(statuses, Object.keys(own), field)
  for (const [name, status] of Object.entries(statuses as object))
    checkLimit(`${field}.${name}`, status, 400, 599)
}
