import type { GatedSession } from '../../gate/gated-session.js'
import type { Request } from '../../wire/request.js'
import { parseStatements, type Statement } from '../statements/parse-statements.js'

/** What a unit would do if it were let go. */
export interface PendingStep {
  /** What was sent before it and is one with it. */
  readonly before: readonly string[]
  readonly statements: readonly Statement[]
  /** Parameters; undefined where they are not known yet, or belong to several statements. */
  readonly values: readonly (string | null)[] | undefined
  /** It is the COMMIT of a statement outside a transaction. */
  readonly isCommit: boolean
  /** It goes on within a function. */
  readonly isWithin: boolean
  /** It is not in a transaction that somebody else ends. */
  readonly isAlone: boolean
}

const isOfOneStatement = (request: Request | undefined): boolean =>
  request?.isClosed === true && request.texts.length === 1 && request.binds < 2

/** Reads it off a session at the gate, or at a yield point. */
export function pendingStepOf(session: GatedSession, isWithin: boolean): PendingStep {
  const { step, request, fused, basis, status } = session
  const sends = step?.sends
  const texts = typeof sends === 'object' ? [sends.sql] : (request?.texts ?? [])
  return {
    before: [...basis, ...fused],
    statements: sends === 'commit' ? [] : texts.flatMap(parseStatements),
    values: typeof sends === 'object' || isOfOneStatement(request) ? session.values : undefined,
    isCommit: sends === 'commit',
    isWithin,
    isAlone: status === 'I' && step?.endsTransaction === true,
  }
}
