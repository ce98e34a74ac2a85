import type { Claimed } from './request-claim.js'
import type { ResponseParts } from './response-parts.js'

/** The body of a request: its bytes, or the value that a parser in front of the middleware made of them. */
export type RequestBody = Uint8Array | { readonly value: unknown } | undefined

/** Returns how many bytes of a response body are kept, by its status. */
export type MaxBytesFor = (status: number) => number

/** One request and its handler, as a framework provides them. */
export interface Exchange<R> {
  /**
   * The request of the framework, for the functions among the options. Read this property once for each function: a function
   * may consume the body of its copy.
   */
  readonly source: R
  readonly method: string
  /** Path and query. */
  readonly target: string
  header(name: string): string | undefined
  body(): RequestBody | Promise<RequestBody>
  /** Runs before anything else, for each request that the middleware handles. */
  prepare?(): Promise<void>
  /** Runs the handler and waits for its complete response. Sends nothing to the client. */
  run(claimed: Claimed<unknown>, maxBytes: MaxBytesFor): Promise<ResponseParts>
  /** True if `run` may be called again after a conflict and starts the handler again. */
  readonly isRepeatable: boolean
  /** False if code in front of the handler has responded, such as a validation. That response is not stored. */
  hasBegun?(): boolean
}

/** The decision about one request. */
export type Verdict =
  /** The middleware does not apply to this request: pass it on. */
  | { readonly kind: 'pass'; readonly claimed?: Claimed<unknown> }
  /** Send the response of the handler. The handler's writes are committed, or rolled back on purpose. */
  | { readonly kind: 'handled'; readonly parts: ResponseParts }
  /** Send this response: a replay or a problem. */
  | { readonly kind: 'replaced'; readonly response: Response }
