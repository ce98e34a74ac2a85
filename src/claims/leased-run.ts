import { type LossReason, SnoozeError, TransientError } from '../errors.js'
import { Lease } from '../leases/lease.js'
import { LeaseRenewer, type RenewalState } from '../leases/lease-renewer.js'
import { sendRenewal } from '../leases/send-renewal.js'
import type { Database } from '../postgres/database.js'
import { renewalConnectionOf } from '../postgres/dedicated-connection.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { storeFailure } from '../postgres/stored-failure.js'
import type { TextRow, TextValue } from '../postgres/text-values.js'
import { beginClaims, type Ending, type LeasedCall, type Outcome } from './claim-call.js'

/** How long a write waits for a row. Only an operator or a call that writes briefly can have locked it. */
export const WRITE_WAIT_MS = '5000'

/** Thrown by an internal function whose work no caller waits for. The lease expires, as if the process had died. */
export class Abandoned extends Error {}

/** The work of one attempt. */
export interface LeasedWork {
  /** Finds the outcome of an earlier attempt that recorded none. Undefined: run the function. */
  findOutcome?(): Promise<{ readonly outcome: unknown } | undefined>
  run(): Promise<unknown>
}

export interface LeasedRunOptions<G> {
  readonly prepare: (held: HeldClaims<G>) => LeasedWork
  /**
   * The time until the next attempt after a transient error. Null releases the claims at once, because the caller decides about
   * a repetition.
   */
  readonly retryInMs?: number | null
}

/** Commits the claims, runs the function under their lease, and stores the outcome if every fence is still the same. */
export function runLeased<G, A>(
  call: LeasedCall<G, A>,
  prepare: (held: HeldClaims<G>, granted: G) => LeasedWork,
): Promise<A> {
  return call.database.work(async () => {
    let sentAt = 0
    let waitedMs = 0
    const values = (): TextValue[] => {
      sentAt = performance.now()
      return call.beginValues()
    }
    const decision = await beginClaims(call, async () => {
      const rows = await call.database
        .send(call.beginStatement, values, { duringClose: true, retry: true })
        .catch((error: unknown) => {
          throw hasWaitedInVain(error) ? call.refuse() : error
        })
      waitedMs = Number(rows[0]?.waited)
      return rows
    })
    if (decision.todo === 'answer') return call.answerStored(decision.claim)
    if (decision.todo === 'refuse') throw decision.error
    const { granted } = decision
    const startedAt = call.leaseStart(granted, sentAt, waitedMs)
    return await runHeld(call, granted, startedAt, { prepare: (held) => prepare(held, granted) })
  })
}

/** Runs the work of claims that this process holds, to their end. */
export async function runHeld<G, A>(
  call: LeasedCall<G, A>,
  granted: G,
  startedAt: number,
  { prepare, retryInMs = null }: LeasedRunOptions<G>,
): Promise<A> {
  const held = new HeldClaims(call, granted, startedAt)
  try {
    held.signal.throwIfAborted()
    const work = prepare(held)
    const found = await findOutcome(held, work, retryInMs)
    const value = found ? found.outcome : await runFunction(call, held, work, retryInMs)
    const outcome = await readOutcome(call, held, value)
    const end = await call.readEnd(await held.end({ kind: 'done', json: outcome.json }))
    // guard: once.late-holder
    if (end.isRecorded) return await call.answerOwn(granted, outcome, end.completedAt ?? null)
    const lost = call.lost('outcome', granted)
    // If the caller that took over has ended, this call has the same outcome.
    if (end.other) return await call.answerStored(end.other)
    throw lost
  } finally {
    held.stopRenewal()
  }
}

async function findOutcome<G>(
  held: HeldClaims<G>,
  work: LeasedWork,
  retryInMs: number | null,
): Promise<{ readonly outcome: unknown } | undefined> {
  try {
    return await work.findOutcome?.()
  } catch (error) {
    await held.end({
      kind: 'released',
      json: storeFailure(error),
      retryInMs: retryInMs ?? 0,
      isVoid: true,
    })
    throw error
  }
}

async function runFunction<G, A>(
  call: LeasedCall<G, A>,
  held: HeldClaims<G>,
  work: LeasedWork,
  retryInMs: number | null,
): Promise<unknown> {
  try {
    return await work.run()
  } catch (error) {
    if (error instanceof Abandoned) throw error
    // Only `TransientError` and `SnoozeError` say that nothing has happened.
    const mayHaveHappened =
      call.holdsAmbiguous && !(error instanceof TransientError || error instanceof SnoozeError)
    const kind = call.failureKind(error) ?? 'released'
    const json = storeFailure(error)
    await held.end({ kind, json, retryInMs: mayHaveHappened ? (retryInMs ?? 0) : retryInMs })
    throw error
  }
}

/** The work is done, so an outcome that cannot be stored must not cause a repetition. */
async function readOutcome<G, A>(
  call: LeasedCall<G, A>,
  held: HeldClaims<G>,
  value: unknown,
): Promise<Outcome> {
  try {
    return await call.readOutcome(value)
  } catch (error) {
    await held.end({ kind: 'unstorable', json: storeFailure(error) }) // guard: acquire.leased-unkept
    throw error
  }
}

/** Leased claims that this process holds, with their lease. */
export class HeldClaims<G> extends Lease {
  readonly #call: LeasedCall<G, unknown>
  readonly #granted: G
  #isBeingEnded = false

  /** @param sentAt when the lease began, or earlier, by `performance.now()` */
  constructor(call: LeasedCall<G, unknown>, granted: G, sentAt: number) {
    super({ leaseMs: call.leaseMs, sentAt })
    this.#call = call
    this.#granted = granted
    renewerOf(call.database).add(this)
    this.checkDeadline() // this process may have been suspended since it sent the request
  }

  override get isBeingEnded(): boolean {
    return this.#isBeingEnded
  }

  protected override onLost(reason: LossReason): Error {
    return this.#call.lost(reason === 'stolen' ? 'renewal' : 'deadline', this.#granted)
  }

  /** Counts the claims as lost, because the database refused a step. */
  loseByStep(): void {
    this.stopRenewal('lost')
    // The reason emits an event, once for each loss.
    if (this.abortReason === undefined) this.abort(this.#call.lost('step', this.#granted))
  }

  async renew(patienceMs: number): Promise<RenewalState> {
    const { statement, values } = this.#call.renewal(this.#granted, patienceMs)
    const [row] = await sendRenewal(this.#call.database, statement, values, patienceMs)
    return row?.state === 'held' ? 'held' : 'lost' // guard: acquire.leased-renewal
  }

  /** Records how the work ended. If a release cannot be recorded, the lease expires. */
  async end(ending: Ending): Promise<TextRow | undefined> {
    if (ending.kind === 'released') this.stopRenewal()
    this.#isBeingEnded = true
    const { statement, values } = this.#call.end(this.#granted, ending, WRITE_WAIT_MS, false)
    try {
      const [row] = await this.#call.database.send(statement, values, { duringClose: true, retry: true })
      return row
    } catch (error) {
      const reported = this.#call.explainUnrecorded(this.#granted, ending, error)
      if (reported) throw reported
      return undefined
    } finally {
      this.stopRenewal()
    }
  }
}

const renewers = new WeakMap<Database, LeaseRenewer<HeldClaims<unknown>>>()

/** Renews the leased claims of an instance. Each kind of claim has its own statement. */
function renewerOf(database: Database): LeaseRenewer<HeldClaims<unknown>> {
  let renewer = renewers.get(database)
  if (!renewer) {
    renewer = new LeaseRenewer<HeldClaims<unknown>>({
      renew: (renewals, patienceMs) => Promise.all(renewals.map(({ lease }) => lease.renew(patienceMs))),
      ...{ maxBatch: 1, maxInFlight: Number.POSITIVE_INFINITY, keepsProcessAlive: true },
      connection: renewalConnectionOf(database),
    })
    renewers.set(database, renewer)
  }
  return renewer
}
