import type { TransactionStatus } from '../wire/backend.js'
import type { Request } from '../wire/request.js'

/** Some of the statements of a request. */
export interface RequestPart {
  readonly sql: string
  /** The parameters. A simple query has none. */
  readonly values: readonly (string | null)[]
  readonly bytes: Buffer
}

/** A part of a request that the explorer schedules on its own. */
export interface PlannedStep {
  /** The text that reports show. */
  readonly text: string
  /** The bytes for the server: the whole request, a part of it, or a COMMIT that the client has not sent. */
  readonly sends: 'request' | 'commit' | RequestPart
  /** The step ends a transaction: its writes become visible, and its locks are freed. */
  readonly endsTransaction: boolean
  /** The step has both a COMMIT and the writes that it commits. */
  readonly commitsOwnWork?: boolean | undefined
  /** The step changes the schema. Emptying the tables does not undo that. */
  readonly changesSchema?: boolean | undefined
}

/** The parameters of a step. Some drivers send them only after the server has described the statement. */
export function valuesOf(
  step: PlannedStep | undefined,
  request: Request | undefined,
): readonly (string | null)[] {
  const sends = step?.sends
  return (typeof sends === 'object' ? sends.values : request?.values) ?? []
}

/** The steps of a request. */
export interface Plan {
  /** Empty if the request neither reads nor locks. The gate sends such a request at once. */
  readonly steps: readonly PlannedStep[]
  /** The request is an autocommit statement. The gate runs it in a transaction, whose COMMIT is a step. */
  readonly isSplit: boolean
  readonly opensSavepoint: boolean
  /** The request has only BEGIN, and perhaps settings after it. */
  readonly begins?: boolean | undefined
  /** The request is a simple query that has only BEGIN. */
  readonly beginsAlone?: boolean | undefined
}

/** The part of a session's state that a planner reads. */
export interface SessionView {
  readonly status: TransactionStatus
  /** The open transaction has had a savepoint. */
  readonly hasSavepoint: boolean
}

/** Decides how requests become steps. */
export interface Planner {
  plan(request: Request, session: SessionView): Plan | Promise<Plan>
  /** Called when the server has refused to run `text` in a transaction block. No later plan splits it. */
  refuseSplit(text: string): void
}
