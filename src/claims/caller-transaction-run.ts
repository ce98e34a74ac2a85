import type { Tx } from '../postgres/executor.js'
import { JoinedCall } from '../postgres/joined-call.js'
import { storeFailure } from '../postgres/stored-failure.js'
import { beginClaims, type ClaimCall, type Ending, type Outcome } from './claim-call.js'
import { withSavepoint } from './with-savepoint.js'

/** Claims, runs the function and stores its outcome in the caller's transaction: one statement for the claims, and one for their end. */
export async function runInCallerTransaction<G, A>(
  call: ClaimCall<G, A>,
  tx: Tx,
  fn: (granted: G) => Promise<unknown>,
): Promise<A> {
  const joined = new JoinedCall(call.database, tx, `${call.calledAs} of ${call.subject}`)
  const decision = await beginClaims(call, () => joined.first(call.beginStatement, call.beginValues()))
  if (decision.todo === 'answer') return call.answerStored(decision.claim)
  if (decision.todo === 'refuse') throw decision.error
  return await runGranted(call, tx, joined, decision.granted, () => fn(decision.granted))
}

async function runGranted<G, A>(
  call: ClaimCall<G, A>,
  tx: Tx,
  joined: JoinedCall,
  granted: G,
  fn: () => Promise<unknown>,
): Promise<A> {
  const end = (ending: Ending) => {
    const { statement, values } = call.end(granted, ending, null, false)
    return joined.last(statement, values)
  }
  const work = async () => call.readOutcome(await fn())
  let outcome: Outcome
  try {
    outcome = await (call.usesSavepoint ? withSavepoint(call.database, tx, work) : work())
  } catch (error) {
    // The caller may catch this error and commit, so the claims must not stay half done. In an aborted transaction this
    // statement fails, and the rollback undoes the claims too.
    await end({ kind: call.failureKind(error) ?? 'released', json: storeFailure(error) }).catch(() => {})
    throw error
  }
  if (!call.storesOutcome) {
    await joined.close()
    return call.answerOwn(granted, outcome, null)
  }
  const [row] = await end({ kind: 'done', json: outcome.json })
  const { isRecorded, completedAt } = await call.readEnd(row)
  if (!isRecorded) throw call.lost('outcome', granted)
  return call.answerOwn(granted, outcome, completedAt ?? null)
}
