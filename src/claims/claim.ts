import type { Stored } from '../postgres/json.js'

/** What a step is given. */
export interface StepContext {
  /** The same in every attempt, another for every step: to be handed on to whoever does the work. */
  readonly idempotencyKey: string
  readonly signal: AbortSignal
}

/** What the handler of a leased claim works with. */
export interface Claim {
  /** The same in every attempt, also by another process. Callers that find the key claimed are told it. */
  readonly id: string
  /** Grows with each attempt: whoever stores it with what they write can refuse a late one. */
  readonly fence: number
  /** From 1. */
  readonly attempt: number
  /**
   * To be handed on to whoever does the work outside, so that a repetition is known there. The same in every attempt, and
   * another once the key has expired and is used anew.
   */
  readonly idempotencyKey: string
  /** Fires when the claim is lost: stop then, another works on it. Give it to `fetch` and the like. */
  readonly signal: AbortSignal
  /**
   * Does a part of the work and records what came of it, so that an attempt that takes over goes on behind it. A part whose attempt died
   * before that is recorded is done again, with the same `idempotencyKey`.
   *
   * @example
   * const charge = dibs.operation('charge', {}, async (input: { amount: number }, claim) => {
   *   const payment = await claim.step('pay', ({ idempotencyKey }) => bank.pay(input.amount, idempotencyKey))
   *   return await claim.step('mail', () => mailer.send(`paid ${payment.id}`))
   * })
   */
  step<T>(name: string, fn: (context: StepContext) => Promise<T> | T): Promise<Stored<T>>
}
