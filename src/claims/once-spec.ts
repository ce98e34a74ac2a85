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
  /** What the key belongs to: `'payments'`, or parts that are escaped and joined: `['payments', tenantId]`. */
  readonly scope: string | readonly (string | number | bigint)[]
  /** The same for each repetition of a request, another for each new one. Up to 512 bytes. */
  readonly key: string
  /** The request, or what of it must be the same in a repetition: JSON. It is compared when both calls gave one. */
  readonly fingerprint?: unknown
  /** How long to wait for another caller that works on the key, then `BusyError`. 0: do not wait, `InProgressError` at once. Default: 5,000 joined, 0 leased. */
  readonly waitMs?: number | undefined
  /** How long the outcome is kept; after that the key is new. `Infinity` for ever. Default 24 hours. */
  readonly keepMs?: number | undefined
  /** Reads what is stored, for the first caller as for later ones: any Standard Schema. */
  readonly result?: StandardSchema<unknown, R> | undefined
  /** True for errors that are final beside `PermanentError` and `BusinessRuleError`: they are stored and replayed. */
  readonly isTerminal?: ((error: unknown) => boolean) | undefined
  /** Goes into events and logs. */
  readonly requestId?: string | undefined
}

/** For work that is all in this database: claim, writes and outcome commit together. */
export interface JoinedSpec<R = unknown> extends CommonSpec<R> {
  readonly mode?: 'joined' | undefined
  /** Your own transaction. Without one, `once` makes one. */
  readonly tx?: Tx | undefined
  /** Of the transaction that `once` makes. Default 30,000. */
  readonly deadlineMs?: number | undefined
}

/** What to do about an attempt without a recorded outcome; `outcome` says that its work was done, and what came of it. */
export type AmbiguousVerdict = 'retry' | 'hold' | { readonly outcome: unknown }

/** For work outside of this database: the claim commits first, and is held by a lease. */
export interface LeasedSpec<R = unknown> extends CommonSpec<R> {
  readonly mode: 'leased'
  /** How long after its last sign of life a holder counts as dead. Renewed while the handler runs. Default 30,000. */
  readonly leaseMs?: number | undefined
  /** After so many attempts without a recorded outcome, the claim has failed. Default 5. */
  readonly maxAttempts?: number | undefined
  /**
   * What to do when an earlier attempt has no recorded outcome: run again (the default), hold with `AmbiguousOutcomeError`, or
   * what your function finds out.
   */
  readonly onAmbiguous?:
    | 'retry'
    | 'hold'
    | ((claim: Claim) => AmbiguousVerdict | Promise<AmbiguousVerdict>)
    | undefined
}

export type OnceSpec<R = unknown> = JoinedSpec<R> | LeasedSpec<R>

/** `dibs.once`, by what the function works with. The answer is what the schema `result` makes of the outcome, or what JSON does. */
export interface Once {
  /** Leased. */
  <T, R = Stored<T>>(spec: LeasedSpec<R>, fn: (claim: Claim) => Promise<T>): Promise<NoInfer<R>>
  /** In your transaction. */
  <T, X extends Tx, R = Stored<T>>(
    spec: JoinedSpec<R> & { readonly tx: X },
    fn: (tx: X) => Promise<T>,
  ): Promise<NoInfer<R>>
  /** In a transaction of its own. */
  <T, R = Stored<T>>(
    spec: JoinedSpec<R> & { readonly tx?: undefined },
    fn: (tx: Transaction) => Promise<T>,
  ): Promise<NoInfer<R>>
}

/** `dibs.onceDetailed`. */
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

/** What `onceDetailed` answers. */
export interface OnceResult<T> {
  readonly value: T
  /** The function was not run: this is what an earlier call has stored. */
  readonly replayed: boolean
  /** Which attempt the outcome is of, from 1. */
  readonly attempt: number
  readonly completedAt: Date
  /** Of the claim. */
  readonly id: string
}

/** What `tryOnce` returns. */
export type OnceAttempt<T> =
  | (OnceResult<T> & { readonly ok: true })
  | {
      readonly ok: false
      /** The id of the claim on which another caller works, if that is known. */
      readonly id?: string
      /** Host and process that work on the key. Missing while the key is part of a transaction that is still open. */
      readonly holder?: string
      /** When the lease of that holder ends, unless it is renewed. */
      readonly leaseUntil?: Date
      readonly retryAfterMs: number
    }

/** `dibs.tryOnce`. */
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

/** A spec that was checked. */
export interface ReadSpec {
  readonly scope: string
  readonly key: string
  readonly fingerprint: string | null
  /** 0: not at all. */
  readonly waitMs: number
  /** Null: for ever. */
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

/** The empty first part is what no caller can name: scopes of our own begin with it. */
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
