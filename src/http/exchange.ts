import type { Claimed } from './claimed.js'
import type { RequestBody } from './request-body.js'
import type { ResponseParts } from './response-parts.js'

/** The longest body that is kept of a response with a status. */
export type BytesOf = (status: number) => number

/** One request in a framework's hands, and how its handler is let go. */
export interface Exchange<R> {
  /** As the framework hands it over: for the application's own functions. */
  readonly source: R
  readonly method: string
  /** Path and query. */
  readonly target: string
  header(name: string): string | undefined
  body(): RequestBody | Promise<RequestBody>
  /** What is to be done with each request that is ours, before anything else. */
  prepare?(): Promise<void>
  /** Lets the handler go, and waits until its response is whole. Nothing of that may reach the client before `answer` has said so. */
  run(claimed: Claimed<unknown>, mostBytes: BytesOf): Promise<ResponseParts>
  /** `run` may be called again after a conflict, and starts the handler anew. */
  readonly isRepeatable: boolean
  /** False: something before the handler has answered, such as a validation, and that is not stored. */
  hasBegun?(): boolean
}

/** What to send. */
export type Verdict =
  /** The request is none of ours: hand it on as if we were not there. */
  | { readonly kind: 'pass'; readonly claimed?: Claimed<unknown> }
  /** What the handler has made: it is committed, or meant not to be. */
  | { readonly kind: 'own'; readonly parts: ResponseParts }
  /** Something else: a replay, or a problem. */
  | { readonly kind: 'other'; readonly response: Response }

/** The response of a handler that is not to be stored: sent as it is, and what was written is undone. */
export class NotKept extends Error {
  readonly parts: ResponseParts

  constructor(parts: ResponseParts) {
    super(`The response has status ${parts.status}, which is not stored.`)
    this.parts = parts
  }
}
