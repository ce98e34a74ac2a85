import { CommitOutcomeUnknownError, DatabaseError, NestedTransactionError } from '../errors.js'
import type { Tx } from '../postgres/executor.js'
import { isInside } from '../postgres/open-transaction.js'
import { sleep } from '../postgres/sleep.js'
import { repeatTransaction } from '../postgres/transaction.js'
import type { FramedTransaction } from '../postgres/transaction-handle.js'
import type { Transaction } from '../postgres/transaction-types.js'
import { type ClaimRow, readClaim } from './claim-row.js'
import { beginClaim, endClaim, finishClaim } from './claim-statements.js'
import { toJson } from './json.js'
import type { OnceCall } from './once-call.js'
import type { OnceResult } from './once-spec.js'
import { parseStored } from './standard-schema.js'
import { isTerminalError, storeFailure } from './stored-failure.js'

/** How often a lost answer to COMMIT is looked into. */
const MAX_LOOKS = 3

/** Raised by `claim_finish` in the message that also commits. */
const NOT_HELD = 'DIB01'

/**
 * In a transaction of its own: BEGIN and the claim are one message, the outcome and COMMIT another.
 *
 * An answer to COMMIT that was lost is looked into by calling again: the claim that may be there waits for nobody else, and
 * tells whether it was kept.
 */
export async function onceAlone(
  call: OnceCall,
  deadlineMs: number | undefined,
  fn: (tx: Transaction) => Promise<unknown>,
): Promise<OnceResult<unknown>> {
  if (isInside(call.database)) throw new NestedTransactionError()
  for (let looks = 1; ; ) {
    try {
      const result = await tryAlone(call, deadlineMs, fn)
      if (result !== 'wait') return result
      await sleep(call.pauseMs)
    } catch (error) {
      if (!(error instanceof CommitOutcomeUnknownError) || looks++ === MAX_LOOKS) throw error
    }
  }
}

type Ended =
  | { readonly todo: 'wait' }
  | { readonly todo: 'answer'; readonly claim: ClaimRow }
  | { readonly todo: 'run'; readonly tx: FramedTransaction; readonly failure?: { readonly error: unknown } }

async function tryAlone(
  call: OnceCall,
  deadlineMs: number | undefined,
  fn: (tx: Transaction) => Promise<unknown>,
): Promise<OnceResult<unknown> | 'wait'> {
  const opening = `${call.database.inline(beginClaim, call.values())}; savepoint dibs_claim`
  const ended = await repeatTransaction(
    call.database,
    (tx) => runAlone(call, tx, fn),
    { deadlineMs },
    { opening },
  ).catch((error) => {
    if (error instanceof DatabaseError && error.sqlState === NOT_HELD) throw call.lost(0, 'outcome')
    throw error
  })
  if (ended.todo === 'wait') return 'wait'
  // A claim that bears the id of this call was made by it, and the answer to its COMMIT was lost.
  if (ended.todo === 'answer') return call.answer(ended.claim, ended.claim.id !== call.id)
  if (ended.failure) throw ended.failure.error
  return call.answer(readClaim(ended.tx.closed[0] ?? {}), false)
}

async function runAlone(
  call: OnceCall,
  tx: FramedTransaction,
  fn: (tx: Transaction) => Promise<unknown>,
): Promise<Ended> {
  const { todo, begun } = call.judge(tx.opened[0])
  if (todo !== 'run') {
    tx.leave()
    return todo === 'wait' ? { todo } : { todo, claim: begun.claim }
  }
  const finish = (status: 'active' | 'failed', outcome: string | null): string =>
    call.database.inline(finishClaim, finishValues(call, begun.claim.fence, status, outcome, true))
  let outcome: string | null
  try {
    outcome = await readOutcome(call, await fn(tx))
  } catch (error) {
    if (!isTerminalError(error, call.spec.isTerminal)) throw error
    tx.dropAfterCommits()
    tx.closeWith(`rollback to savepoint dibs_claim; ${finish('failed', storeFailure(error))}`)
    return { todo, tx, failure: { error } }
  }
  tx.closeWith(finish('active', outcome))
  return { todo, tx }
}

/** In the caller's transaction: one statement for the claim, one for the outcome, and nothing aborts it but a conflict. */
export async function onceInside<X extends Tx>(
  call: OnceCall,
  tx: X,
  fn: (tx: X) => Promise<unknown>,
): Promise<OnceResult<unknown>> {
  const { database } = call
  for (;;) {
    const [row] = await database.send(beginClaim, call.values(), tx)
    const { todo, begun } = call.judge(row)
    if (todo === 'answer') return call.answer(begun.claim, true)
    if (todo === 'run') return runInside(call, tx, begun.claim.fence, fn)
    await sleep(call.pauseMs)
  }
}

async function runInside<X extends Tx>(
  call: OnceCall,
  tx: X,
  fence: number,
  fn: (tx: X) => Promise<unknown>,
): Promise<OnceResult<unknown>> {
  const finish = (status: 'active' | 'failed', outcome: string | null) =>
    call.database.send(finishClaim, finishValues(call, fence, status, outcome, false), tx)
  let outcome: string | null
  try {
    outcome = await readOutcome(call, await fn(tx))
  } catch (error) {
    // If the caller goes on and commits, the claim must not stay behind half done. If the transaction is aborted, this fails
    // like everything else in it, and the claim goes with it.
    const { scope, key } = call.spec
    await (isTerminalError(error, call.spec.isTerminal)
      ? finish('failed', storeFailure(error))
      : call.database.send(endClaim, [scope, key, String(fence), null], tx)
    ).catch(() => {})
    throw error
  }
  const [row = {}] = await finish('active', outcome)
  if (row.state !== 'stored') throw call.lost(fence, 'outcome')
  return call.answer(readClaim(row), false)
}

/** An outcome that cannot be stored, or read again, must not be committed. */
async function readOutcome(call: OnceCall, value: unknown): Promise<string | null> {
  const outcome = value === undefined ? null : toJson('outcome', value)
  await parseStored(call.spec.result, outcome === null ? undefined : JSON.parse(outcome), call.subject)
  return outcome
}

function finishValues(
  { spec }: OnceCall,
  fence: number,
  status: 'active' | 'failed',
  outcome: string | null,
  must: boolean,
) {
  return [spec.scope, spec.key, String(fence), status, outcome, spec.keepMs, String(must)]
}
