import type { Claim } from '../../claims/claim.js'
import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import type { OwnTransaction } from './idempotency-options.js'

/** The key of a request, with the transaction or the claim of its handler. `T` is the type of the transaction. */
export class Claimed<T = Transaction> {
  /** The key that the client sent; undefined if the client sent none and `required` is false. */
  readonly key: string | undefined
  readonly #tx: T | undefined
  readonly #claim: Claim | undefined
  readonly #transaction: OwnTransaction | undefined

  constructor(
    key: string | undefined,
    held: {
      readonly tx?: T | undefined
      readonly claim?: Claim | undefined
      /** The option `transaction` that made `tx`. */
      readonly transaction?: OwnTransaction | undefined
    },
  ) {
    this.key = key
    this.#tx = held.tx
    this.#claim = held.claim
    this.#transaction = held.transaction
  }

  /** True if `transaction` made `tx`. Undefined stands for a transaction of Dibs, and for a claim. */
  static isOf<H>(claimed: Claimed<unknown>, transaction: OwnTransaction<H>): claimed is Claimed<H>
  static isOf(claimed: Claimed<unknown>, transaction: undefined): claimed is Claimed
  static isOf(claimed: Claimed<unknown>, transaction: OwnTransaction | undefined): boolean {
    return claimed.#transaction === transaction
  }

  /** Joined: the transaction. The handler's writes and the response commit together, or not at all. */
  get tx(): T {
    if (this.#tx === undefined)
      throw new InvalidInputError(
        'tx',
        "exists only in mode 'joined'. This route is 'leased' and has a claim",
      )
    return this.#tx
  }

  /** Leased: the claim, with the `idempotencyKey` to pass on, the `signal` and the steps. */
  get claim(): Claim {
    if (this.#claim === undefined)
      throw new InvalidInputError(
        'claim',
        this.#tx === undefined
          ? 'exists only for a request with a key. This one has none, and `required` is false'
          : "exists only in mode 'leased'. This route is 'joined' and has a transaction",
      )
    return this.#claim
  }
}

const known = new WeakMap<object, Claimed<unknown>>()

/** Lets `claimed` find it by any object that a handler may have for the request. */
export function registerClaimed(claimed: Claimed<unknown>, ...requests: readonly object[]): void {
  for (const request of requests) known.set(request, claimed)
}

/** Refuses a second idempotency middleware in front of one route, which would wait for the claim of the first. */
export function assertSingleMiddleware(request: object): void {
  if (known.has(request))
    throw new InvalidInputError('middleware', 'is in front of this route twice. Remove one')
}

/** Returns what the middleware in front of this route made for the request, with a transaction of an unknown type. */
export function findClaimed(request: object): Claimed<unknown> {
  const found = typeof request === 'object' && request !== null ? known.get(request) : undefined
  if (!found)
    throw new InvalidInputError(
      'request',
      `has not passed the idempotency middleware: the middleware is not in front of this route, or does not apply to this method (${nameGiven(request)})`,
    )
  return found
}

/**
 * Returns the transaction or the claim of a handler behind the middleware. `request` is the request as the framework passes it.
 *
 * If the route has the option `transaction`, pass the same function. `tx` then has the type of your library's transaction.
 *
 * @example
 * const { tx } = claimed(request)
 * await tx.query('insert into orders (item) values ($1)', [body.item])
 *
 * const { claim } = claimed(request)
 * await bank.pay(10, claim.idempotencyKey)
 */
export function claimed(request: object): Claimed
export function claimed<H>(request: object, transaction: OwnTransaction<H>): Claimed<H>
export function claimed<H>(request: object, transaction?: OwnTransaction<H>): Claimed | Claimed<H> {
  const found = findClaimed(request)
  if (transaction === undefined) {
    if (Claimed.isOf(found, undefined)) return found
    throw new InvalidInputError(
      'transaction',
      'must be passed, since this route has a `transaction` of its own: claimed(request, transaction)',
    )
  }
  if (Claimed.isOf(found, transaction)) return found
  throw new InvalidInputError(
    'transaction',
    'must be the same function as the option `transaction` of this route',
  )
}
