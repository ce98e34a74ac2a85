import { InvalidInputError } from '../errors.js'
import { checkDuration, checkLifetime, MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkFunction } from '../postgres/check-function.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Tx } from '../postgres/executor.js'
import type { Stored } from '../postgres/json.js'
import { checkKey, keyOf } from '../postgres/key.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import { checkSchema, type StandardSchema } from '../postgres/standard-schema.js'
import type { Transaction } from '../postgres/transaction-types.js'
import type { Claim } from './claim.js'
import { fingerprintOf } from './fingerprint.js'

interface CommonSpec<R> {
  /** The namespace of the key: `'payments'`, or parts that are escaped and joined: `['payments', tenantId]`. */
  readonly scope: string | readonly (string | number | bigint)[]
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

/**
 * The type of `dibs.once`, with an overload for each mode. The result is the outcome as parsed by the schema `result`. Without a schema, it is the outcome
 * as JSON returns it.
 */
export interface Once {
  /** Runs `fn` under a lease. */
  <T, R = Stored<T>>(spec: LeasedSpec<R>, fn: (claim: Claim) => Promise<T>): Promise<NoInfer<R>>
  /** Runs `fn` in your transaction. */
  <T, X extends Tx, R = Stored<T>>(
    spec: JoinedSpec<R> & { readonly tx: X },
    fn: (tx: X) => Promise<T>,
  ): Promise<NoInfer<R>>
  /** Runs `fn` in a transaction of its own. */
  <T, R = Stored<T>>(
    spec: JoinedSpec<R> & { readonly tx?: undefined },
    fn: (tx: Transaction) => Promise<T>,
  ): Promise<NoInfer<R>>
}

/** The type of `dibs.onceDetailed`. */
export interface OnceDetailed {
  <T, R = Stored<T>>(spec: LeasedSpec<R>, fn: (claim: Claim) => Promise<T>): Promise<OnceResult<NoInfer<R>>>
  <T, X extends Tx, R = Stored<T>>(
    spec: JoinedSpec<R> & { readonly tx: X },
    fn: (tx: X) => Promise<T>,
  ): Promise<OnceResult<NoInfer<R>>>
  <T, R = Stored<T>>(
    spec: JoinedSpec<R> & { readonly tx?: undefined },
    fn: (tx: Transaction) => Promise<T>,
  ): Promise<OnceResult<NoInfer<R>>>
}

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

/** The type of `dibs.tryOnce`. */
export interface TryOnce {
  <T, R = Stored<T>>(spec: LeasedSpec<R>, fn: (claim: Claim) => Promise<T>): Promise<OnceAttempt<NoInfer<R>>>
  <T, X extends Tx, R = Stored<T>>(
    spec: JoinedSpec<R> & { readonly tx: X },
    fn: (tx: X) => Promise<T>,
  ): Promise<OnceAttempt<NoInfer<R>>>
  <T, R = Stored<T>>(
    spec: JoinedSpec<R> & { readonly tx?: undefined },
    fn: (tx: Transaction) => Promise<T>,
  ): Promise<OnceAttempt<NoInfer<R>>>
}

/** A validated spec. */
export interface ReadSpec {
  readonly scope: string
  readonly key: string
  readonly fingerprint: string | null
  /** 0 means no wait. */
  readonly waitMs: number
  /** Null means forever. */
  readonly keepMs: string | null
  readonly result: StandardSchema<unknown, unknown> | undefined
  readonly isTerminal: ((error: unknown) => boolean) | undefined
  readonly requestId: string | undefined
}

export interface ReadLeasedSpec extends ReadSpec {
  readonly leaseMs: number
  readonly maxAttempts: number
  readonly onAmbiguous: NonNullable<LeasedSpec['onAmbiguous']>
}

const DAY_MS = 24 * 3_600_000
const common = [
  'scope',
  'key',
  'fingerprint',
  'waitMs',
  'keepMs',
  'result',
  'isTerminal',
  'requestId',
  'mode',
]
const names = {
  joined: [...common, 'tx', 'deadlineMs'],
  leased: [...common, 'leaseMs', 'maxAttempts', 'onAmbiguous'],
}

export function readMode(spec: OnceSpec): 'joined' | 'leased' {
  if (typeof spec !== 'object' || spec === null)
    throw new InvalidInputError('spec', `must be an object such as { scope, key }, not ${nameGiven(spec)}`)
  const { mode = 'joined' } = spec
  if (mode !== 'joined' && mode !== 'leased')
    throw new InvalidInputError('mode', `must be 'joined' or 'leased', not ${showGiven(mode)}`)
  checkOptions(spec, names[mode])
  return mode
}

export function readSpec(spec: OnceSpec, waitsByDefault: boolean): ReadSpec {
  const { waitMs = waitsByDefault ? 5_000 : 0, keepMs = DAY_MS, isTerminal, requestId } = spec
  if (isTerminal !== undefined) checkFunction('isTerminal', isTerminal)
  if (requestId !== undefined && typeof requestId !== 'string')
    throw new InvalidInputError('requestId', `must be a text, not ${nameGiven(requestId)}`)
  checkSchema('result', spec.result)
  return {
    scope: readScope(spec.scope),
    key: checkKey('key', spec.key),
    fingerprint: spec.fingerprint === undefined ? null : fingerprintOf('fingerprint', spec.fingerprint),
    waitMs: checkDuration('waitMs', waitMs, 0, MAX_TIMER_MS),
    keepMs: checkLifetime('keepMs', keepMs),
    result: spec.result,
    isTerminal,
    requestId,
  }
}

export function readLease(
  spec: Pick<LeasedSpec, 'leaseMs' | 'maxAttempts' | 'onAmbiguous'>,
): Pick<ReadLeasedSpec, 'leaseMs' | 'maxAttempts' | 'onAmbiguous'> {
  const { leaseMs = 30_000, maxAttempts = 5, onAmbiguous = 'retry' } = spec
  if (!(Number.isSafeInteger(maxAttempts) && maxAttempts >= 1 && maxAttempts <= 1_000))
    throw new InvalidInputError(
      'maxAttempts',
      `must be a whole number from 1 to 1000, not ${showGiven(maxAttempts)}`,
    )
  if (onAmbiguous !== 'retry' && onAmbiguous !== 'hold' && typeof onAmbiguous !== 'function')
    throw new InvalidInputError(
      'onAmbiguous',
      `must be 'retry', 'hold' or a function, not ${nameGiven(onAmbiguous)}`,
    )
  return { leaseMs: checkDuration('leaseMs', leaseMs, 100, MAX_TIMER_MS), maxAttempts, onAmbiguous }
}

/** Scopes of Dibs itself begin with an empty first part, which no caller can name. */
export function readScope(scope: unknown): string {
  if (!Array.isArray(scope)) {
    const text = checkKey('scope', scope)
    if (text.startsWith(':')) throw new InvalidInputError('scope', 'must not begin with ":"')
    return text
  }
  try {
    return keyOf(...scope)
  } catch (error) {
    if (error instanceof InvalidInputError)
      throw new InvalidInputError('scope', error.message.replace(/^\S+ |\.$/g, ''))
    throw error
  }
}
