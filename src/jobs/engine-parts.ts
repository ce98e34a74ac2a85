import type { Database } from '../postgres/database.js'
import type { EventOrigin } from '../postgres/events.js'
import type { Wakeups } from '../postgres/wakeups.js'
import type { Attempt } from './attempt.js'
import type { CircuitBreaker } from './circuit-breaker.js'
import type { Cursors } from './cursors.js'
import type { JobLine } from './job-line.js'

/** What the parts of an engine know of it. */
export interface EngineParts {
  readonly database: Database
  readonly wakeups: Wakeups
  readonly origin: EventOrigin
  /** Three connections that handlers cannot starve: for what is claimed, for what has ended, and for the rest. */
  readonly claims: JobLine
  readonly ends: JobLine
  readonly upkeep: JobLine
  /** For what may take long, connected while somebody needs it. */
  readonly looks: JobLine
  readonly cursors: Cursors
  readonly breaker: CircuitBreaker
  /** What this process holds. */
  readonly keeper: { readonly attempts: Iterable<Attempt>; over(most: number): number[] }
  /** What this process has finished. */
  readonly ender: { readonly isBehind: boolean }
  /** Nothing is sent any more. */
  readonly isOver: boolean
  /** The database is there. */
  onAnswer(): void
  /** There is something to do in these queues, for whoever has room. */
  hint(queues: Iterable<string>): void
}
