import { InvalidInputError } from '../errors.js'
import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import { duration, wholeNumber } from '../options/number-options.js'
import { checked, unchecked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { boolean } from '../options/value-options.js'
import type { Storable, Stored } from '../postgres/json.js'
import { checkSchema, type StandardSchema } from '../postgres/standard-schema.js'
import { checkRetry, type Retry } from './retry-policy.js'
import { checkName, storedName } from './stored-string.js'

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
export interface JobDefinition<AddInput = unknown, Input = AddInput, Result = unknown> extends JobOptions {
  /** Checks the input when the job is added, and again before a handler gets it. A Standard Schema, such as one of Zod, Valibot or ArkType. */
  readonly input?: StandardSchema<AddInput, Input> | undefined
  /** Checks the value that a handler returns. */
  readonly result?: StandardSchema<unknown, Result> | undefined
  /** Exists at compile time only; see `job`. */
  readonly '~types'?: { readonly input: AddInput; readonly result: Result } | undefined
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
export type JobAddInput<D> = D extends { readonly input: StandardSchema<infer AddInput, unknown> }
  ? AddInput
  : D extends { readonly '~types'?: { readonly input: infer AddInput } | undefined }
    ? unknown extends AddInput
      ? unknown
      : AddInput
    : unknown

/** The input of `add` where JSON can represent it; see `Storable`. If the definition does not say what the input is, the type is that of the value. */
export type JobPayload<D, Value = unknown> =
  unknown extends JobAddInput<D> ? Value & Storable<Value> : Storable<JobAddInput<D>>

/** The type of the input that a handler gets: the output of the schema, or the input as JSON preserves it. */
export type JobInput<D> = D extends { readonly input: StandardSchema<infer _, infer Input> }
  ? Input
  : Stored<JobAddInput<D>>

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

/** A definition after its checks, with its defaults. */
export interface ResolvedDefinition {
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
export const MAX_INTEGER = 2 ** 31 - 1

export const jobOptions = optionTable<AnyJobDefinition>()('dibs.jobs', {
  input: checked(checkSchema),
  result: checked(checkSchema),
  queue: { ...storedName, default: 'default' },
  version: wholeNumber({ default: 1, max: MAX_INTEGER }),
  retry: checked(checkRetry),
  maxAttempts: wholeNumber({ default: 10, max: MAX_INTEGER }),
  // A short pause of the process would lose a shorter lease; see docs/defaults.md.
  leaseMs: duration({ default: 30_000, min: 500, max: MAX_TIMER_MS }),
  timeoutMs: duration({ max: MAX_TIMER_MS }),
  keepMs: duration({ default: 7 * DAY_MS, min: 0, max: 366 * DAY_MS }),
  transactional: boolean({ default: false }),
  '~types': unchecked(),
})

export function resolveDefinition(name: string, definition: AnyJobDefinition): ResolvedDefinition {
  checkName('name', name)
  if (definition === undefined)
    throw new InvalidInputError(name, 'must be an object of options, not undefined')
  const { keepMs, '~types': _, ...options } = jobOptions.read(definition, name)
  return { ...options, name, keepDays: Math.ceil(keepMs / DAY_MS) }
}
