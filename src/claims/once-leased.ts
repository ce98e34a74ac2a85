import { InvalidInputError, SnoozeError, TransientError } from '../errors.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { toOutcome } from '../postgres/json.js'
import { sendSurely } from '../postgres/send-surely.js'
import { sleep } from '../postgres/sleep.js'
import { isTerminalError, storeFailure } from '../postgres/stored-failure.js'
import type { TextRow } from '../postgres/text-values.js'
import type { Claim } from './claim.js'
import { beginClaim } from './claim-statements.js'
import { HeldClaim } from './held-claim.js'
import type { OnceCall } from './once-call.js'
import type { AmbiguousVerdict, OnceResult, ReadLeasedSpec } from './once-spec.js'
import type { ToldClaim } from './told-claim.js'

type Handler = (claim: Claim) => Promise<unknown>

/** Thrown by a function of our own: nobody waits for its work any more, and the lease is left to run out as if the process had died. */
export class Abandoned extends Error {}

interface OperationInput {
  readonly name: string
  readonly input: string
}

/** The claim commits first; the work is done under its lease; the outcome is stored if the fence is still the same. */
export function onceLeased(
  call: OnceCall,
  spec: ReadLeasedSpec,
  handler: Handler,
  operation?: OperationInput,
): Promise<OnceResult<unknown>> {
  return call.database.work(async () => {
    for (;;) {
      const { row, sentAt } = await begin(call, spec, operation)
      const { todo, claim } = call.judge(row)
      if (todo === 'answer') return call.answer(claim, true)
      if (todo === 'run') {
        const since = sinceWhen(claim, spec.leaseMs, sentAt, Number(row?.waited))
        const isAmbiguous = claim.state === 'taken over'
        return await workOn(call, spec, claim, { handler, sentAt: since, isAmbiguous, retryInMs: null })
      }
      await sleep(call.pauseMs)
    }
  })
}

/**
 * When the lease began, by this process's clock, or earlier: the time at which the answer arrived says nothing, since this
 * process may have stood still before it read it. A claim that has waited, or that was found again after its answer was lost,
 * is told what is left of its lease at the end of the statement, `waitedMs` after the server got it.
 */
function sinceWhen({ leftMs }: ToldClaim, leaseMs: number, sentAt: number, waitedMs: number): number {
  return leftMs === null ? sentAt : sentAt + Math.max(0, waitedMs - 1) - (leaseMs - leftMs)
}

async function begin(
  call: OnceCall,
  spec: ReadLeasedSpec,
  operation: OperationInput | undefined,
): Promise<{ readonly row: TextRow | undefined; readonly sentAt: number }> {
  let sentAt = 0
  try {
    const [row] = await sendSurely(call, beginClaim, () => {
      sentAt = performance.now()
      return call.leasedValues(spec, operation)
    })
    return { row, sentAt }
  } catch (error) {
    throw hasWaitedInVain(error) ? call.refuse() : error
  }
}

export interface Work {
  readonly handler: Handler
  /** When the statement was sent that began the lease, by `performance.now()`. */
  readonly sentAt: number
  /** The previous attempt has no recorded outcome. */
  readonly isAmbiguous: boolean
  /** After an error that may pass: null releases the claim, since the caller was told and decides. */
  readonly retryInMs: number | null
}

/** Does the work of a claim that is held, from here to its end. */
export async function workOn(
  call: OnceCall,
  spec: ReadLeasedSpec,
  told: ToldClaim,
  { handler, sentAt, isAmbiguous, retryInMs }: Work,
): Promise<OnceResult<unknown>> {
  const claim = new HeldClaim(call, told, spec.leaseMs, sentAt)
  try {
    claim.signal.throwIfAborted() // this process may have stood still since it asked
    const found = isAmbiguous ? await lookInto(claim, spec, call, retryInMs) : undefined
    const value = found ? found.outcome : await runHandler(claim, spec, handler, retryInMs)
    return await finishWith(call, claim, await writeOutcome(claim, value))
  } finally {
    claim.stop()
  }
}

/** The outcome of an attempt that did not say how it ended, if somebody knows it. Whatever else comes of the question, it stays. */
async function lookInto(
  claim: HeldClaim,
  { onAmbiguous }: ReadLeasedSpec,
  call: OnceCall,
  retryInMs: number | null,
): Promise<{ readonly outcome: unknown } | undefined> {
  if (typeof onAmbiguous !== 'function') return undefined
  try {
    const verdict: AmbiguousVerdict = await onAmbiguous(claim)
    if (verdict === 'retry') return undefined
    if (verdict === 'hold') throw call.ambiguous(claim.id, claim.attempt - 1)
    if (typeof verdict === 'object' && verdict !== null && 'outcome' in verdict) return verdict
    throw new InvalidInputError('onAmbiguous', "must say 'retry', 'hold' or { outcome }")
  } catch (error) {
    await claim.end(retryInMs ?? 0, storeFailure(error), true)
    throw error
  }
}

async function runHandler(
  claim: HeldClaim,
  { onAmbiguous, isTerminal }: ReadLeasedSpec,
  handler: Handler,
  retryInMs: number | null,
): Promise<unknown> {
  try {
    return await handler(claim)
  } catch (error) {
    if (error instanceof Abandoned) throw error
    const failure = storeFailure(error)
    if (isTerminalError(error, isTerminal)) await claim.finish('failed', failure)
    else {
      // Where a repetition is not taken lightly, only an error thrown to say so means that nothing has happened.
      const saysSo = error instanceof TransientError || error instanceof SnoozeError
      const mayHaveHappened = onAmbiguous !== 'retry' && !saysSo
      await claim.end(mayHaveHappened ? (retryInMs ?? 0) : retryInMs, failure, false)
    }
    throw error
  }
}

/** The work is done: an outcome that cannot be kept must not make it be done again. */
async function writeOutcome(claim: HeldClaim, value: unknown): Promise<string | null> {
  try {
    return value === undefined ? null : toOutcome('outcome', value)
  } catch (error) {
    await claim.finish('failed', storeFailure(error))
    throw error
  }
}

async function finishWith(
  call: OnceCall,
  claim: HeldClaim,
  outcome: string | null,
): Promise<OnceResult<unknown>> {
  const told = await claim.finish('active', outcome)
  if (told.state === 'stored') return call.answerOwn(claim, outcome, told)
  const lost = call.lost(claim.fence, 'outcome')
  // Whoever took over has ended: their outcome is the one, for this caller too.
  if (told.status === 'active' || told.status === 'failed') return call.answer(told, true)
  throw lost
}
