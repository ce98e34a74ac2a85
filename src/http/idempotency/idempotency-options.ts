import type { Claim } from '../../claims/claim.js'
import type { Tx } from '../../postgres/executor.js'
import type { Json } from '../../postgres/json.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import type { Problem, ProblemName } from '../problem.js'
import type { StorePolicy } from './response-store-policy.js'

/** Rate limits have their own options. */
type RateProblem = 'rateLimited' | 'neverFits'

/** The owner of a key: tenant and user. Dibs escapes and joins the parts. */
export type RequestScope = string | readonly (string | number | bigint)[]

/** The options of the middleware. `R` is the type of the framework's request, `H` the transaction type of the option `transaction`. */
export interface IdempotencyOptions<R, H = Transaction> {
  /**
   * Returns the owner of the key: tenant and user, as your authentication has found them. Two owners never share a response. `'anonymous'`: all clients share
   * keys, so anybody who knows a key can get its response.
   */
  readonly scope: 'anonymous' | ((request: R) => RequestScope | Promise<RequestScope>)
  /**
   * `joined` (default): the handler gets a transaction, and its writes commit together with the response. `leased`: the handler gets a claim, for effects
   * outside of the database.
   */
  readonly mode?: 'joined' | 'leased' | undefined
  /** Whether a key is required. False: a request without a key runs each time. Default true. */
  readonly required?: boolean | undefined
  /** The methods that need a key. Default POST, PUT and PATCH. Requests with other methods pass through. */
  readonly methods?: readonly string[] | undefined
  /** The name of the header. Default `Idempotency-Key`. */
  readonly header?: string | undefined
  /** Reads the key from elsewhere than a header, such as the id of a webhook's event. Excludes `header`. */
  readonly key?:
    | ((request: R) => string | number | undefined | Promise<string | number | undefined>)
    | undefined
  /** A pattern for keys, such as that of a UUID. All keys have 1 to 255 characters. */
  readonly keyPattern?: RegExp | undefined
  /**
   * Normalizes the path, for routers that accept several spellings: Express and others ignore case and a trailing slash. Gets the path without its query. The
   * result replaces the path in the scope and in the fingerprint. Default: the path as the client sent it.
   */
  readonly normalizePath?: ((path: string) => string) | undefined
  /** Returns what must be the same in a repetition, as JSON, in place of method, path, query and body. Excludes `fingerprintHeaders`. */
  readonly fingerprint?: ((request: R) => unknown) | undefined
  /** Headers that must also be the same in a repetition. Default none. */
  readonly fingerprintHeaders?: readonly string[] | undefined
  /** How long to wait for another request with the same key. 0: respond with 409 at once. Must be less than `deadlineMs`. Default 0. */
  readonly waitMs?: number | undefined
  /** How long a response is kept. After that the key counts as new. Default 24 hours. */
  readonly keepMs?: number | undefined
  /** How long the client waits for the handler. Default 30,000. */
  readonly deadlineMs?: number | undefined
  /** Leased: how long after its last renewal a process counts as dead. Default 30,000. */
  readonly leaseMs?: number | undefined
  /** Leased: after this many attempts without a recorded outcome, the request has failed. Default 5. */
  readonly maxAttempts?: number | undefined
  /** Leased: what to do if an earlier attempt has no recorded outcome. A function may find out, and return the response. Default `retry`. */
  readonly onAmbiguous?:
    | 'retry'
    | 'hold'
    | ((claim: Claim, request: R) => 'retry' | 'hold' | Response | Promise<'retry' | 'hold' | Response>)
    | undefined
  /** The responses that are stored. Default `final`. */
  readonly store?: StorePolicy | undefined
  /** Joined: the statuses after which the handler's writes are kept. Default: below 400. */
  readonly keepsWrites?: ((status: number) => boolean) | undefined
  /** Headers to replay in addition to the default ones. Never `set-cookie`, nor headers that belong to one connection. */
  readonly replayHeaders?: readonly string[] | undefined
  /** The maximum request body in bytes, where no parser of the framework has read it before: `dibs/http`, `dibs/node` and Hono. Default 1,048,576. */
  readonly maxRequestBytes?: number | undefined
  /** The maximum response body in bytes that is stored. Default 262,144; at most 700,000. */
  readonly maxResponseBytes?: number | undefined
  /** Stores a reference to a larger response, and rebuilds the response from it. Without this option, a larger response is refused. */
  readonly large?: LargeResponses<R> | undefined
  /** Replaces the default statuses of problems, by name. */
  readonly statuses?: Readonly<Partial<Record<Exclude<ProblemName, RateProblem>, number>>> | undefined
  /** The prefix of problem types. Default `urn:dibs:problem:`. */
  readonly problemTypes?: string | undefined
  /** Returns the body of a problem in your own format. */
  readonly problemBody?: ((problem: Problem) => unknown) | undefined
  /** Joined: runs the handler in a transaction of your own library. The handler gets it as `claimed(request, transaction).tx`. */
  readonly transaction?: OwnTransaction<H> | undefined
  /** Returns the id of the request, for events and logs. */
  readonly requestId?: ((request: R) => string | undefined) | undefined
}

/** How to rebuild a response body that is too large to store. The body is rebuilt for the first caller and for later ones. */
export interface LargeResponses<R> {
  /** Returns a reference from which `rebuild` can make the response, as JSON. Called before the commit. */
  readonly reference: (
    response: { readonly status: number; readonly headers: Headers },
    request: R,
  ) => Json | Promise<Json>
  /** Makes the response from the reference. The status, and headers that `rebuild` does not set, are those of the first response. */
  readonly rebuild: (reference: Json, request: R) => Response | Promise<Response>
}

/**
 * Runs `work` in a transaction of your own library, commits when `work` resolves and rolls back when it rejects. `H` is the type of that
 * library's transaction:
 *
 * `const inKysely: OwnTransaction<KyselyTransaction<Shop>> = (work) => db.transaction().execute((trx) => work(fromKysely(trx), trx))`
 *
 * The function also identifies the type: `claimed(request, inKysely).tx` is a `KyselyTransaction<Shop>`.
 */
export type OwnTransaction<H = unknown> = (work: (tx: Tx, handle: H) => Promise<void>) => Promise<unknown>
