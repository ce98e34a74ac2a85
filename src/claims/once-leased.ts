import { AmbiguousOutcomeError, DibsError, InvalidInputError } from '../errors.js'
import { sleep } from '../postgres/sleep.js'
import type { Claim } from './claim.js'
import { type ClaimRow, readClaim } from './claim-row.js'
import { beginClaim } from './claim-statements.js'
import { HeldClaim, sendSurely } from './held-claim.js'
import { toJson } from './json.js'
import type { OnceCall } from './once-call.js'
import type { AmbiguousVerdict, OnceResult, ReadLeasedSpec } from './once-spec.js'
import { isTerminalError, storeFailure } from './stored-failure.js'

type Handler = (claim: Claim) => Promise<unknown>

/** The claim commits first; the work is done under its lease; the outcome is stored if the fence is still the same. */
export function onceLeased(
  call: OnceCall,
  spec: ReadLeasedSpec,
  handler: Handler,
  operation?: { readonly name: string; readonly input: string },
): Promise<OnceResult<unknown>> {
  return call.database.work(async () => {
    for (;;) {
      let sentAt = 0
      const [row] = await sendSurely(call, beginClaim, () => {
        sentAt = performance.now()
        return call.values(spec, operation)
      })
      const { todo, begun } = call.judge(row)
      if (todo === 'answer') return call.answer(begun.claim, true)
      if (todo === 'run') {
        const isAmbiguous = begun.state === 'taken over'
        // A claim that was found again, after its answer was lost, is as old as what is gone of its lease.
        if (begun.leftMs > 0) sentAt -= spec.leaseMs - begun.leftMs
        return await workOn(call, spec, begun.claim, { handler, sentAt, isAmbiguous, retryInMs: null })
      }
      await sleep(call.pauseMs)
    }
  })
}

export interface Work {
  readonly handler: Handler
  /** When the statement was sent that began the lease, by `performance.now()`. */
  readonly sentAt: number
  /** The attempt before ended without a word. */
  readonly isAmbiguous: boolean
  /** After an error that may pass: null releases the claim, since the caller was told and decides. */
  readonly retryInMs: number | null
}

/** Does the work of a claim that is held, from here to its end. */
export async function workOn(
  call: OnceCall,
  spec: ReadLeasedSpec,
  row: ClaimRow,
  { handler, sentAt, isAmbiguous, retryInMs }: Work,
): Promise<OnceResult<unknown>> {
  const claim = new HeldClaim(call, row, spec.leaseMs, sentAt)
  let value: unknown
  try {
    claim.signal.throwIfAborted()
    const verdict = isAmbiguous ? await lookInto(claim, spec, call.subject) : 'retry'
    value = verdict === 'retry' ? await handler(claim) : verdict.outcome
  } catch (error) {
    await endWith(claim, spec, error, retryInMs)
    throw error
  }
  let outcome: string | null
  try {
    outcome = value === undefined ? null : toJson('outcome', value)
  } catch (error) {
    // The work is done: an outcome that cannot be kept must not make it be done again.
    await claim.finish('failed', storeFailure(error))
    throw error
  }
  return await finishWith(call, claim, outcome)
}

/** What to do about an attempt that ended without a word. */
async function lookInto(
  claim: HeldClaim,
  { onAmbiguous }: ReadLeasedSpec,
  subject: string,
): Promise<Exclude<AmbiguousVerdict, 'hold'>> {
  if (typeof onAmbiguous !== 'function') return 'retry'
  const verdict = await onAmbiguous(claim)
  if (verdict === 'hold') throw new AmbiguousOutcomeError(subject, claim.id, claim.attempt - 1)
  if (verdict === 'retry' || (typeof verdict === 'object' && verdict !== null && 'outcome' in verdict))
    return verdict
  throw new InvalidInputError('onAmbiguous', "must say 'retry', 'hold' or { outcome }")
}

async function endWith(
  claim: HeldClaim,
  { onAmbiguous, isTerminal }: ReadLeasedSpec,
  error: unknown,
  retryInMs: number | null,
): Promise<void> {
  if (isTerminalError(error, isTerminal)) {
    await claim.finish('failed', storeFailure(error))
    return
  }
  // Where a repetition is not taken lightly, only an error that says so means that nothing has happened.
  const mayHaveHappened = onAmbiguous !== 'retry' && !(error instanceof DibsError && error.retryable)
  await claim.end(mayHaveHappened ? 0 : retryInMs)
}

async function finishWith(
  call: OnceCall,
  claim: HeldClaim,
  outcome: string | null,
): Promise<OnceResult<unknown>> {
  const { isOurs, row } = await claim.finish('active', outcome)
  if (isOurs) return call.answer(readClaim(row), false)
  const lost = call.lost(claim.fence, 'outcome')
  // Whoever took over has ended: their outcome is the one, for this caller too.
  if (row.status === 'active' || row.status === 'failed') return call.answer(readClaim(row), true)
  throw lost
}
