import { InvalidInputError } from '../../errors.js'
import { lifetimeText } from '../../options/check-duration.js'
import { readNames } from '../../options/check-options.js'
import { MAX_TIMER_MS } from '../../options/max-timer-ms.js'
import { showGiven } from '../../options/name-given.js'
import { duration, lifetime, wholeNumber } from '../../options/number-options.js'
import { checked, required, unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { checkOneOf, func, oneOf, string } from '../../options/value-options.js'
import type { Tx } from '../../postgres/executor.js'
import type { Stored } from '../../postgres/json.js'
import { checkKey } from '../../postgres/key.js'
import { checkSchema, type StandardSchema } from '../../postgres/standard-schema.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import type { Claim } from '../claim.js'
import { readScope, type Scope } from '../read-scope.js'
import { fingerprintOf } from './fingerprint.js'

interface CommonSpec<R> {
  /** The namespace of the key: `'payments'`, or parts that are escaped and joined: `['payments', tenantId]`. */
  readonly scope: Scope
  /** The idempotency key. Repetitions of one request share a key, and each new request has another. Up to 512 bytes. */
  readonly key: string
  /** The request, or the part of it that a repetition must not change, as JSON. Compared if both calls gave one. */
  readonly fingerprint?: unknown
  /**
   * How long to wait for another caller that works on the key, then `BusyError`. With 0 the call does not wait, and throws `InProgressError` at once.
   * Default: 5,000 joined, 0 leased.
   */
  readonly waitMs?: number | undefined
  /** How long the outcome is kept. After that, the key is new. `Infinity` keeps it forever. Default 24 hours. */
  readonly keepMs?: number | undefined
  /** Parses the stored outcome, for the first caller and for later ones. Any Standard Schema. */
  readonly result?: StandardSchema<unknown, R> | undefined
  /** Returns true for errors that are final, in addition to `PermanentError` and `BusinessRuleError`. Final errors are stored and replayed. */
  readonly isTerminal?: ((error: unknown) => boolean) | undefined
  /** Included in events and logs. */
  readonly requestId?: string | undefined
}

/** For work that is entirely in this database: claim, writes and outcome commit together. */
export interface JoinedSpec<R = unknown> extends CommonSpec<R> {
  readonly mode?: 'joined' | undefined
  /** Your own transaction. Without one, `once` makes one. */
  readonly tx?: Tx | undefined
  /** The deadline of the transaction that `once` makes. Default 30,000. */
  readonly deadlineMs?: number | undefined
}

/**
 * The decision about an attempt without a recorded outcome. `'retry'` runs the function again. `'hold'` throws `AmbiguousOutcomeError`. `{ outcome }` says
 * that the work was done, with this outcome.
 */
export type AmbiguousVerdict = 'retry' | 'hold' | { readonly outcome: unknown }

/** For work outside of this database: the claim commits first and is held by a lease. */
export interface LeasedSpec<R = unknown> extends CommonSpec<R> {
  readonly mode: 'leased'
  /** A holder without a sign of life for this long counts as dead. The lease is renewed while the handler runs. Default 30,000. */
  readonly leaseMs?: number | undefined
  /** After this many attempts without a recorded outcome, the claim fails. Default 5. */
  readonly maxAttempts?: number | undefined
  /**
   * The action when an earlier attempt has no recorded outcome: run again (`'retry'`, the default), throw `AmbiguousOutcomeError` (`'hold'`), or follow
   * the verdict of your function.
   */
  readonly onAmbiguous?:
    | 'retry'
    | 'hold'
    | ((claim: Claim) => AmbiguousVerdict | Promise<AmbiguousVerdict>)
    | undefined
}

export type OnceSpec<R = unknown> = JoinedSpec<R> | LeasedSpec<R>

/** Result of `dibs.onceDetailed`. */
export interface OnceResult<T> {
  readonly value: T
  /** True if another call stored this value. The function did not run in this call, or it lost its claim. */
  readonly replayed: boolean
  /** The number of the attempt that has the outcome, from 1. */
  readonly attempt: number
  readonly completedAt: Date
  /** The id of the claim. */
  readonly id: string
}

/** Result of `dibs.tryOnce`. */
export type OnceAttempt<T> =
  | (OnceResult<T> & { readonly ok: true })
  | {
      readonly ok: false
      /** The id of the claim that another caller works on, if it is known. */
      readonly id?: string
      /** Host and process that work on the key. Missing while the key is part of a transaction that is still open. */
      readonly holder?: string
      /** When the lease of that holder ends, unless it is renewed. */
      readonly leaseUntil?: Date
      readonly retryAfterMs: number
    }

/** The result of a call of each form. */
interface OnceForms<R> {
  readonly once: R
  readonly onceDetailed: OnceResult<R>
  readonly tryOnce: OnceAttempt<R>
}

/**
 * The overloads of one form, one for each mode. The outcome is as parsed by the schema `result`. Without a schema, it is as JSON returns it.
 */
interface OnceOverloads<F extends keyof OnceForms<unknown>> {
  /** Runs `fn` under a lease. */
  <T, R = Stored<T>>(spec: LeasedSpec<R>, fn: (claim: Claim) => Promise<T>): Promise<OnceForms<NoInfer<R>>[F]>
  /** Runs `fn` in your transaction. */
  <T, X extends Tx, R = Stored<T>>(
    spec: JoinedSpec<R> & { readonly tx: X },
    fn: (tx: X) => Promise<T>,
  ): Promise<OnceForms<NoInfer<R>>[F]>
  /** Runs `fn` in a transaction of its own. */
  <T, R = Stored<T>>(
    spec: JoinedSpec<R> & { readonly tx?: undefined },
    fn: (tx: Transaction) => Promise<T>,
  ): Promise<OnceForms<NoInfer<R>>[F]>
}

/** The type of `dibs.once`. */
export type Once = OnceOverloads<'once'>

/** The type of `dibs.onceDetailed`. */
export type OnceDetailed = OnceOverloads<'onceDetailed'>

/** The type of `dibs.tryOnce`. */
export type TryOnce = OnceOverloads<'tryOnce'>

const DAY_MS = 24 * 3_600_000

/** The options that `once`, operations and `claim.once` share. */
export const commonFields = {
  keepMs: lifetime({ default: DAY_MS }),
  isTerminal: func<(error: unknown) => boolean>(),
  requestId: string(),
}

export const leaseFields = {
  leaseMs: duration({ default: 30_000, min: 100, max: MAX_TIMER_MS }),
  maxAttempts: wholeNumber({ default: 5, max: 1_000 }),
  onAmbiguous: checked<NonNullable<LeasedSpec['onAmbiguous']>>(checkOnAmbiguous, { default: 'retry' }),
}

const onceFields = {
  scope: required(unchecked<Scope>()), // by `readScope`
  key: required(checked<string>(checkKey)),
  fingerprint: unchecked<unknown>(), // by `fingerprintOf`
  result: checked<StandardSchema<unknown, unknown>>(checkSchema),
  ...commonFields,
}

export const joinedSpec = optionTable<JoinedSpec>()('dibs.once, dibs.onceDetailed, dibs.tryOnce', {
  ...onceFields,
  mode: oneOf(['joined']),
  waitMs: duration({ default: 5_000, min: 0, max: MAX_TIMER_MS }),
  deadlineMs: duration({ default: 30_000 }),
  tx: unchecked(),
})

export const leasedSpec = optionTable<LeasedSpec>()(
  'dibs.once, dibs.onceDetailed, dibs.tryOnce with mode leased',
  {
    ...onceFields,
    ...leaseFields,
    mode: required(oneOf(['leased'])),
    waitMs: duration({ default: 0, min: 0, max: MAX_TIMER_MS }),
  },
)

function checkOnAmbiguous(field: string, value: unknown): void {
  if (value === 'retry' || value === 'hold' || typeof value === 'function') return
  throw new InvalidInputError(field, `must be 'retry', 'hold' or a function, not ${showGiven(value)}`)
}

/** Reads the mode of a call, which decides about the other options. */
export function readMode(
  name: 'spec' | 'options',
  options: { readonly mode?: unknown },
): 'joined' | 'leased' {
  if (typeof options !== 'object' || options === null) readNames(options, name) // throws
  return checkOneOf('mode', options?.mode ?? 'joined', ['joined', 'leased'])
}

/** The checked spec of a call, in the form that its statements need. */
export interface OnceCallSpec {
  readonly scope: string
  readonly key: string
  readonly fingerprint: string | null
  /** 0 means no wait. */
  readonly waitMs: number
  /** Null means forever. */
  readonly keepMs: string | null
  readonly result?: StandardSchema<unknown, unknown> | undefined
  readonly isTerminal: ((error: unknown) => boolean) | undefined
  readonly requestId: string | undefined
}

export interface LeasedOnceCallSpec extends OnceCallSpec {
  readonly leaseMs: number
  readonly maxAttempts: number
  readonly onAmbiguous: NonNullable<LeasedSpec['onAmbiguous']>
}

interface CheckedSpec extends Pick<OnceCallSpec, 'key' | 'waitMs' | 'result' | 'isTerminal' | 'requestId'> {
  readonly scope: Scope
  readonly fingerprint?: unknown
  readonly keepMs: number
}

export function toCallSpec(spec: CheckedSpec): OnceCallSpec {
  const { scope, key, fingerprint, waitMs, keepMs, result, isTerminal, requestId } = spec
  return {
    scope: readScope(scope),
    key,
    fingerprint: fingerprint === undefined ? null : fingerprintOf('fingerprint', fingerprint),
    waitMs,
    keepMs: lifetimeText(keepMs),
    result,
    isTerminal,
    requestId,
  }
}
