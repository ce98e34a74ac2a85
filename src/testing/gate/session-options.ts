import type { ErrorFields } from '../wire/backend.js'
import type { WirePorts } from '../wire/wire-connection.js'
import type { Planner } from './plan.js'

/**
 * - `opening`: the session is not ready for its first request;
 * - `idle`: the session has no request;
 * - `planning`: the gate decides how the request becomes steps;
 * - `passing`: the request is no step, and is with the server;
 * - `gated`: a step waits for its release;
 * - `running`: a released step is with the server;
 * - `answered`: the server has executed the request, and the client has not got the response (`holdsAnswer`);
 * - `closing`: the client is gone, and the server may still hold its locks;
 * - `closed`: the server process is gone too.
 */
export type SessionState =
  | 'opening'
  | 'idle'
  | 'planning'
  | 'passing'
  | 'gated'
  | 'running'
  | 'answered'
  | 'closing'
  | 'closed'

/** The error that a client gets in place of a response. */
export type InjectedError = Pick<ErrorFields, 'code' | 'message'>

/** @typeParam S the session */
export interface SessionOptions<S> {
  readonly ports: WirePorts
  readonly planner: Planner
  readonly observer: { onChange(session: S): void }
  /** The settings that the session starts with. */
  readonly settings: Readonly<Record<string, string>>
  /** Runs before the first request. */
  readonly prepare?: ((session: S) => Promise<void>) | undefined
  /** Called when a pool hands out the client of the session. */
  readonly onHandOver?: ((session: S) => void) | undefined
  /** Ends the connection on both sides. */
  readonly destroy: () => void
  /** Ends the connection, and hides the end from the client where that is possible. */
  readonly abandon: () => void
  /** True if the client is connected over the network, so that its bytes arrive late. */
  readonly isRemote?: boolean | undefined
}
