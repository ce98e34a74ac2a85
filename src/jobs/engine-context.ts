import type { CircuitBreaker } from '../postgres/circuit-breaker.js'
import type { Database } from '../postgres/database.js'
import type { DedicatedConnection } from '../postgres/dedicated-connection.js'
import type { EventOrigin } from '../postgres/events.js'
import type { Wakeups } from '../postgres/wakeups.js'
import type { Attempt } from './attempt.js'
import type { LaneCursors } from './lane-cursors.js'

/** The members of the engine that its parts use, so that they need not import the engine. */
export interface EngineContext {
  readonly database: Database
  readonly wakeups: Wakeups
  readonly origin: EventOrigin
  /** Connections that handlers cannot use up: for claims, for outcomes, and for heartbeats and the rest. */
  readonly claims: DedicatedConnection
  readonly outcomes: DedicatedConnection
  readonly maintenance: DedicatedConnection
  /** For statements that may take long. Connected while one of them is needed. */
  readonly scans: DedicatedConnection
  readonly cursors: LaneCursors
  readonly breaker: CircuitBreaker
  /** The attempts that this process has not ended, and the claims whose attempts have all ended. */
  readonly heartbeat: { readonly attempts: Iterable<Attempt>; takeEndedClaims(max: number): number[] }
  readonly completer: { readonly isBehind: boolean }
  /** True once the instance is closed. Then no statement is retried. */
  readonly isClosed: boolean
  /** The database has answered, so it is available. */
  onAnswer(): void
  /** Jobs of these queues are ready. */
  notifyQueues(queues: Iterable<string>): void
}
