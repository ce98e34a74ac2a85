import type { Claim } from '../claims/claim.js'
import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../postgres/name-given.js'
import type { Transaction } from '../postgres/transaction-types.js'

/** What a handler works with behind the middleware. */
export class Claimed<T = Transaction> {
  /** The key that the client sent; undefined if it sent none and need not. */
  readonly key: string | undefined
  readonly #tx: T | undefined
  readonly #claim: Claim | undefined

  constructor(
    key: string | undefined,
    held: { readonly tx?: T | undefined; readonly claim?: Claim | undefined },
  ) {
    this.key = key
    this.#tx = held.tx
    this.#claim = held.claim
  }

  /** Joined: what is written in it commits together with the response, or not at all. */
  get tx(): T {
    if (this.#tx === undefined)
      throw new InvalidInputError('tx', "is there in mode 'joined'; this route is 'leased' and has a claim")
    return this.#tx
  }

  /** Leased: its `idempotencyKey`, to hand on, its `signal`, its steps. */
  get claim(): Claim {
    if (this.#claim === undefined)
      throw new InvalidInputError(
        'claim',
        this.#tx === undefined
          ? 'is there when the client has sent a key; this one has not, and `required` is false'
          : "is there in mode 'leased'; this route is 'joined' and has a transaction",
      )
    return this.#claim
  }
}

const known = new WeakMap<object, Claimed<unknown>>()

/** By each of the objects that a handler may have at hand for the request. */
export function remember(claimed: Claimed<unknown>, ...requests: readonly object[]): void {
  for (const request of requests) known.set(request, claimed)
}

/** Behind itself it would wait for its own claim. */
export function assertOnce(request: object): void {
  if (known.has(request))
    throw new InvalidInputError('middleware', 'of idempotency stands twice in front of this route')
}

/**
 * What a handler behind the middleware works with: its transaction, or its claim. By the request as the framework hands it over.
 *
 * @example
 * const { tx } = claimed(request)
 * await tx.query('insert into orders (item) values ($1)', [body.item])
 *
 * const { claim } = claimed(request)
 * await bank.pay(10, claim.idempotencyKey)
 */
export function claimed<T = Transaction>(request: object): Claimed<T> {
  const found = typeof request === 'object' && request !== null ? known.get(request) : undefined
  if (!found)
    throw new InvalidInputError(
      'request',
      `did not pass the idempotency middleware: it is not in front of this route, or not for this method (${nameGiven(request)})`,
    )
  return found as Claimed<T>
}
