import { InvalidInputError } from '../errors.js'
import { checkAmount } from '../postgres/check-amount.js'
import { checkDuration, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Json, Storable, Stored } from '../postgres/json.js'
import { nameGiven } from '../postgres/name-given.js'
import { checkSchema, type StandardSchema } from '../postgres/standard-schema.js'
import { checkRetry, type Retry } from './retry-policy.js'

/** Options that all jobs of one name share. */
export interface JobOptions {
  /** The queue that the job waits in. Pausing stops a whole queue, and a worker can be limited to some queues. Default `default`. */
  readonly queue?: string | undefined
  /** The version of the input's meaning. A worker takes only jobs of the version that it knows. Default 1. */
  readonly version?: number | undefined
  /** How long the job waits after a failed attempt. Default: exponential, from one second to one hour. */
  readonly retry?: Retry | undefined
  /** The maximum number of attempts, including attempts that were lost with their worker. Default 10. */
  readonly maxAttempts?: number | undefined
  /** How long after the last heartbeat other workers may take the job. Dibs renews the lease while the handler runs. Default 30,000. */
  readonly leaseMs?: number | undefined
  /**
   * How long the handler may run. After that Dibs gives up the handler, and the attempt has failed. With `transactional`, the wait for a connection does not
   * count. Default: no limit.
   */
  readonly timeoutMs?: number | undefined
  /** How long attempts and the result are kept, rounded up to whole days. 0: they are not kept. Default 7 days. */
  readonly keepMs?: number | undefined
  /** Runs the handler in a transaction (`ctx.tx`) that commits together with the end of the job. Default false. */
  readonly transactional?: boolean | undefined
}

/** A kind of job: its options, its input and its result. */
export interface JobDefinition<Given = unknown, Input = Given, Result = unknown> extends JobOptions {
  /** Checks the input when the job is added, and again before a handler gets it. A Standard Schema, such as one of Zod, Valibot or ArkType. */
  readonly input?: StandardSchema<Given, Input> | undefined
  /** Checks the value that a handler returns. */
  readonly result?: StandardSchema<unknown, Result> | undefined
  /** Exists at compile time only; see `job`. */
  readonly '~types'?: { readonly input: Given; readonly result: Result } | undefined
}

/** A kind of job whose input and result have types, but no schema that checks them. */
export type TypedJob<Input, Result, O extends JobOptions = JobOptions> = O & {
  readonly '~types'?: { readonly input: Input; readonly result: Result } | undefined
}

/**
 * Names the input and result types of a job that has no schemas.
 *
 * @example
 * const jobs = dibs.jobs({ email: job<{ to: string }, { messageId: string }>({ queue: 'mail' }) })
 * await jobs.add('email', { to: 'ann@example.org' })
 */
export function job<Input = unknown, Result = unknown>(
  options: TransactionalOptions,
): TypedJob<Input, Result, TransactionalOptions>
export function job<Input = unknown, Result = unknown>(options?: JobOptions): TypedJob<Input, Result>
export function job<Input = unknown, Result = unknown>(options: JobOptions = {}): TypedJob<Input, Result> {
  return options
}

/** The options of a job whose handler has a transaction (`ctx.tx`). */
export type TransactionalOptions = JobOptions & { readonly transactional: true }

// biome-ignore lint/suspicious/noExplicitAny: any definition, whatever its schemas take and give
export type AnyJobDefinition = JobDefinition<any, any, any>
export type JobDefinitions = Readonly<Record<string, AnyJobDefinition>>

/** The type of the input that `add` takes. */
export type JobGiven<D> = D extends { readonly input: StandardSchema<infer Given, unknown> }
  ? Given
  : D extends { readonly '~types'?: { readonly input: infer Given } | undefined }
    ? unknown extends Given
      ? unknown
      : Given
    : unknown

/** The input of `add` where JSON can represent it; see `Storable`. If the definition does not say what the input is, the type is that of the value. */
export type JobPayload<D, Value = unknown> =
  unknown extends JobGiven<D> ? Value & Storable<Value> : Storable<JobGiven<D>>

/** The type of the input that a handler gets: the output of the schema, or the input as JSON preserves it. */
export type JobInput<D> = D extends { readonly input: StandardSchema<infer _, infer Input> }
  ? Input
  : Stored<JobGiven<D>>

/** The type that a handler may return. */
export type JobResult<D> = D extends { readonly result: StandardSchema<unknown, infer Result> }
  ? Result
  : D extends { readonly '~types'?: { readonly result: infer Result } | undefined }
    ? Result
    : unknown

/** The type of the result that `jobs.result` returns: the output of the schema, or the returned value as JSON preserves it. */
export type JobOutcome<D> = D extends { readonly result: StandardSchema<unknown, infer Result> }
  ? Result
  : Stored<JobResult<D>>

/** Options of one job that is added. */
export interface AddOptions {
  /** When the job is due. Default: at once. */
  readonly runAt?: Date | undefined
  /** How long from now the job is due, by the database's clock. Excludes `runAt`. */
  readonly delayMs?: number | undefined
  /** Jobs of a higher priority run first, among jobs of the same name, version and queue. A whole number, also below zero. Default 0. */
  readonly priority?: number | undefined
  /** If no worker has started the job or its next attempt by then, none will, and the job ends as `expired`. Default: never. */
  readonly expiresAt?: Date | undefined
  /** A name for what the job belongs to, for people who search. Each attempt shows it. At most 1,000 characters. */
  readonly correlationId?: string | undefined
}

/** A definition after its checks, with its defaults. */
export interface ReadDefinition {
  readonly name: string
  readonly queue: string
  readonly version: number
  readonly retry: Retry | undefined
  readonly maxAttempts: number
  readonly leaseMs: number
  readonly timeoutMs: number | undefined
  readonly keepDays: number
  readonly transactional: boolean
  readonly input: StandardSchema | undefined
  readonly result: StandardSchema | undefined
}

const DAY_MS = 86_400_000
/** The largest `integer` of PostgreSQL. */
const MAX_INTEGER = 2 ** 31 - 1
const names = [
  'input',
  'result',
  'queue',
  'version',
  'retry',
  'maxAttempts',
  'leaseMs',
  'timeoutMs',
  'keepMs',
  'transactional',
  '~types',
]

export const DEFAULT_LEASE_MS = 30_000
/** A short pause of the process would lose a shorter lease; see docs/defaults.md. */
export const MIN_LEASE_MS = 500
const MAX_KEEP_MS = 366 * DAY_MS

export function readDefinition(name: string, definition: AnyJobDefinition): ReadDefinition {
  checkName('name', name)
  checkOptions(definition, names, name)
  const {
    queue = 'default',
    version = 1,
    maxAttempts = 10,
    leaseMs = DEFAULT_LEASE_MS,
    keepMs = 7 * DAY_MS,
    transactional = false,
    retry,
    timeoutMs,
    input,
    result,
  } = definition
  const at = (field: string): string => `${name}.${field}`
  checkName(at('queue'), queue)
  checkCount(at('version'), version)
  checkCount(at('maxAttempts'), maxAttempts)
  checkDuration(at('leaseMs'), leaseMs, MIN_LEASE_MS, MAX_TIMER_MS)
  checkDuration(at('keepMs'), keepMs, 0, MAX_KEEP_MS)
  if (timeoutMs !== undefined) checkDuration(at('timeoutMs'), timeoutMs, 1, MAX_TIMER_MS)
  if (typeof transactional !== 'boolean')
    throw new InvalidInputError(at('transactional'), `must be true or false, not ${nameGiven(transactional)}`)
  checkRetry(at('retry'), retry)
  checkSchema(at('input'), input)
  checkSchema(at('result'), result)
  const keepDays = Math.ceil(keepMs / DAY_MS)
  return {
    name,
    queue,
    version,
    retry,
    maxAttempts,
    leaseMs,
    timeoutMs,
    keepDays,
    transactional,
    input,
    result,
  }
}

function checkCount(field: string, count: unknown): void {
  if (checkAmount(field, count) > MAX_INTEGER)
    throw new InvalidInputError(field, `must be at most ${MAX_INTEGER}`)
}

const MAX_NAME = 200

export function checkName(field: string, name: unknown): string {
  if (typeof name === 'string' && name.length >= 1 && name.length <= MAX_NAME)
    return checkCharacters(field, name)
  const given = typeof name === 'string' ? `one of ${name.length}` : nameGiven(name)
  throw new InvalidInputError(field, `must be a text of 1 to ${MAX_NAME} characters, not ${given}`)
}

/** PostgreSQL refuses a NUL character, and stores another character in place of half of a surrogate pair. */
export function checkCharacters(field: string, text: string): string {
  if (text.includes('\0')) throw new InvalidInputError(field, 'must not hold a NUL character')
  if (/\p{Surrogate}/u.test(text))
    throw new InvalidInputError(field, 'must not hold half of a surrogate pair, which is no character')
  return text
}

/** Options of one job after their checks. Dibs stores them beside the input. */
export interface ReadAdd {
  readonly priority: number
  readonly runAt: number | undefined
  readonly delayMs: number | undefined
  readonly expiresAt: number | undefined
  readonly correlationId: string | null
}

const MAX_CORRELATION = 1_000

export function readAdd(options: AddOptions): ReadAdd {
  const { runAt, delayMs, priority = 0, expiresAt, correlationId } = options
  if (runAt !== undefined && delayMs !== undefined)
    throw new InvalidInputError('delayMs', 'and `runAt` are two ways to say when it is due; give one')
  if (delayMs !== undefined) checkDuration('delayMs', delayMs, 0)
  if (!Number.isInteger(priority) || Math.abs(priority) > MAX_INTEGER)
    throw new InvalidInputError(
      'priority',
      `must be a whole number from -${MAX_INTEGER} to ${MAX_INTEGER}, not ${typeof priority === 'number' ? priority : nameGiven(priority)}`,
    )
  return {
    priority,
    runAt: readTime('runAt', runAt),
    delayMs,
    expiresAt: readTime('expiresAt', expiresAt),
    correlationId: correlationId === undefined ? null : checkCorrelation(correlationId),
  }
}

function checkCorrelation(id: unknown): string {
  if (typeof id === 'string' && id.length <= MAX_CORRELATION) return checkCharacters('correlationId', id)
  const given = typeof id === 'string' ? `one of ${id.length}` : nameGiven(id)
  throw new InvalidInputError(
    'correlationId',
    `must be a text of at most ${MAX_CORRELATION} characters, not ${given}`,
  )
}

/** The beginning of the year 1. An earlier time is more likely a mistake, and PostgreSQL cannot represent times before some year. */
const FIRST_TIME = -62_135_596_800_000

function readTime(field: string, time: unknown): number | undefined {
  if (time === undefined) return undefined
  if (!(time instanceof Date)) throw new InvalidInputError(field, `must be a Date, not ${nameGiven(time)}`)
  const at = time.getTime()
  if (Number.isNaN(at)) throw new InvalidInputError(field, 'must be a valid Date, not an Invalid Date')
  if (at < FIRST_TIME) throw new InvalidInputError(field, `must be a Date from the year 1 on, not ${at}`)
  return at
}

export type { Json }
