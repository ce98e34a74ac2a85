import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import type { Tx } from './executor.js'
import type { BoundStatement } from './pipeline.js'
import type { Statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

/** How one of our statements is sent. Without options, it commits by itself over a client of the pool. */
export interface SendOptions {
  /** Sends the statement in this transaction of the caller. Excludes all other options. */
  readonly tx?: Tx | undefined
  /** Cuts the connection if no answer has come after this time. Default: a minute. */
  readonly deadlineMs?: number | undefined
  /** How long to wait for a client of the pool. Default: `deadlineMs`, and never more than five seconds. */
  readonly connectMs?: number | undefined
  /** How long the statement waits for each row lock. Sets a deadline well above it, unless `deadlineMs` is given. */
  readonly waitMs?: number | undefined
  /** Sends the statement over this connection instead of the pool. */
  readonly connection?: StatementSender | undefined
  /** Repeats the statement after a lost answer or another transient error. Only for statements that name their fence or holder. */
  readonly retry?: boolean | undefined
  /** True for a part of work that began before `close`: `close` waits for that work. */
  readonly duringClose?: boolean | undefined
  /** Called when a client of the pool is there, just before the statement is sent. If it throws, nothing is sent. */
  readonly onClient?: (() => void) | undefined
  /** A second statement in the same message. */
  readonly followUp?: FollowUp | undefined
}

/** A connection, or a choice of connections, that statements can be sent over. */
export interface StatementSender {
  send(
    statement: Statement,
    values: readonly TextValue[],
    options?: { readonly deadlineMs?: number | undefined },
  ): Promise<TextRow[]>
}

/** A second statement that starts in a separate transaction when the first is over. The caller does not wait for it. */
export interface FollowUp {
  readonly statement: BoundStatement
  /** Called if the first statement succeeded and this one did not: not every client can send both in one message. */
  readonly ifNotSent: () => void
}

/** Far longer than a statement that waits for no lock takes. */
const SILENT_MS = 10_000

/** How long after the end of a lock wait the answer may come. After that, the network counts as silent. */
export const deadlineFor = (waitMs: number): number => Math.min(2 * waitMs + SILENT_MS, MAX_TIMER_MS)
