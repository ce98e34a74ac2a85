import type { Stored } from '../postgres/json.js'

/** The argument of the function of a step. */
export interface StepContext {
  /** Stays the same in every attempt, and differs between steps. Pass it on to the service that does the work. */
  readonly idempotencyKey: string
  readonly signal: AbortSignal
}

/** The handle of a leased claim, for the function that does the work. */
export interface Claim {
  /** The id of the claim, the same in every attempt and in every process. Callers that find the key claimed get this id too. */
  readonly id: string
  /** Grows with each attempt. Store it with your writes, so that a late write of an older attempt can be refused. */
  readonly fence: number
  /** The number of the attempt, from 1. */
  readonly attempt: number
  /**
   * Pass this key on to the service that does the work, so that the service recognizes a repetition. The key is the same in every attempt. Once the key of
   * the claim has expired and is used again, this key is another.
   */
  readonly idempotencyKey: string
  /** Fires when the claim is lost. Stop then, because another caller may work on it. Pass the signal to `fetch` and similar functions. */
  readonly signal: AbortSignal
  /**
   * Does a part of the work and records its result. An attempt that takes over continues after the recorded steps. A step runs again, with the same
   * `idempotencyKey`, if its attempt died before the result was recorded.
   *
   * @example
   * const charge = dibs.operation('charge', {}, async (input: { amount: number }, claim) => {
   *   const payment = await claim.step('pay', ({ idempotencyKey }) => bank.pay(input.amount, idempotencyKey))
   *   return await claim.step('mail', () => mailer.send(`paid ${payment.id}`))
   * })
   */
  step<T>(name: string, fn: (context: StepContext) => Promise<T> | T): Promise<Stored<T>>
}
