import type { TransactionStatus } from '../wire/backend.js'
import type { Request } from '../wire/request.js'

/** Some of the statements of a request. */
export interface Piece {
  readonly sql: string
  /** Their parameters; none where they came as text. */
  readonly values: readonly (string | null)[]
  readonly bytes: Buffer
}

/** One schedulable piece of a client's request. */
export interface PlannedStep {
  /** For the reader. */
  readonly text: string
  /** What is sent: the request as it came, a piece of it, or a COMMIT that the client knows nothing of. */
  readonly sends: 'request' | 'commit' | Piece
  /** It ends a transaction: what was written is published, locks are freed. */
  readonly endsTransaction: boolean
  /** It holds a COMMIT and what it commits. */
  readonly commitsItself?: boolean | undefined
  /** It changes tables themselves, which emptying them does not undo. */
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

/** How a request becomes steps. */
export interface Plan {
  /** Empty: it neither reads nor locks, and goes to the server at once. */
  readonly steps: readonly PlannedStep[]
  /** The request is an autocommit one and runs in a transaction of ours, whose COMMIT is a step. */
  readonly isSplit: boolean
  /** It opens a savepoint. */
  readonly opensSavepoint: boolean
  /** It is BEGIN, perhaps with settings after it, and nothing else. */
  readonly begins?: boolean | undefined
  /** And without settings, in a simple query. */
  readonly beginsAlone?: boolean | undefined
}

/** What a planner must know of the session. */
export interface SessionView {
  readonly status: TransactionStatus
  /** The open transaction has had a savepoint. */
  readonly hasSavepoint: boolean
}

/** Decides how requests become steps. */
export interface Planner {
  plan(request: Request, session: SessionView): Plan | Promise<Plan>
  /** The server refused to run this text in a transaction block: never split it again. */
  refuseSplit(text: string): void
}
