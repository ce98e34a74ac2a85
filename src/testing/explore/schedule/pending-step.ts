import type { GatedSession } from '../../gate/gated-session.js'
import type { Request } from '../../wire/request.js'
import { parseStatements, type Statement } from '../statements/parse-statements.js'

/** The next step of a unit: what happens if the unit is released. */
export interface PendingStep {
  /** Statements that were sent before the step's own and belong to it: BEGIN, settings. */
  readonly precedingTexts: readonly string[]
  readonly statements: readonly Statement[]
  /** The parameters; undefined if they are unknown, or belong to several statements. */
  readonly values: readonly (string | null)[] | undefined
  /** True if the step is the COMMIT of a statement outside a transaction. */
  readonly isCommit: boolean
  /** True if the step resumes a function at a yield point. */
  readonly isInsideFunction: boolean
  /** True if the step is a whole transaction. */
  readonly isAutocommit: boolean
}

const hasOneStatement = (request: Request | undefined): boolean =>
  request?.isClosed === true && request.texts.length === 1 && request.binds < 2

/** Reads the next step of a session that waits at the gate, or at a yield point. */
export function readPendingStep(session: GatedSession, isInsideFunction: boolean): PendingStep {
  const { step, request, precedingTexts, ownerTexts, status } = session
  const sends = step?.sends
  const texts = typeof sends === 'object' ? [sends.sql] : (request?.texts ?? [])
  return {
    precedingTexts: [...ownerTexts, ...precedingTexts],
    statements: sends === 'commit' ? [] : texts.flatMap(parseStatements),
    values: typeof sends === 'object' || hasOneStatement(request) ? session.values : undefined,
    isCommit: sends === 'commit',
    isInsideFunction,
    isAutocommit: status === 'I' && step?.endsTransaction === true,
  }
}
