import type { Request } from '../wire/request.js'

/** The requests that the owner of the pool makes on a new connection (`pool.on('connect')`). They are no steps. */
export class PoolOwnerSetup {
  /** The statements without parameters. They run again after each schedule. */
  readonly statements: string[] = []
  /** How many of the next requests are the owner's. */
  #remaining = 0

  /** Every request is the owner's until `end()`. */
  begin(): void {
    this.#remaining = Number.POSITIVE_INFINITY
  }

  /** @param queued requests that the owner has made and the client has not sent */
  end(queued: number): void {
    this.#remaining = queued
  }

  /** Counts a request. Returns true if the request is the owner's. */
  takeNext(): boolean {
    if (this.#remaining <= 0) return false
    this.#remaining--
    return true
  }

  note({ values, text }: Request): void {
    if (values.length === 0) this.statements.push(text)
  }
}
