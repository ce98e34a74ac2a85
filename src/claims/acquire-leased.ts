import { FenceLostError, OutcomeNotStoredError, SnoozeError, TransientError } from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import { emit } from '../postgres/events.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { lineOf, type ReservedLine } from '../postgres/reserved-line.js'
import { sendSurely } from '../postgres/send-surely.js'
import { sleep } from '../postgres/sleep.js'
import { storeFailure } from '../postgres/stored-failure.js'
import type { TextRow } from '../postgres/text-values.js'
import type { AcquireCall, Ending } from './acquire-call.js'
import { endValues, readValue } from './acquire-joined.js'
import { acquireClaims, endAcquired, endHold, renewAcquired } from './acquire-statements.js'
import type { ToldAcquire } from './acquire-told.js'
import { Lease } from './lease.js'

/** The handle of leased claims, which the function gets with the grants. */
export interface AcquireLease {
  /**
   * Pass this key on to the service that does the work, so that the service recognizes a repetition. With `claim.once`, the key is the same in every
   * attempt.
   */
  readonly idempotencyKey: string
  /** The number of the attempt, from 1. Above 1, an earlier attempt has no recorded outcome. */
  readonly attempt: number
  /** Fires when one of the claims is lost. Stop then. Pass the signal to `fetch` and similar functions. */
  readonly signal: AbortSignal
}

type Handler = (lease: AcquireLease, grants: unknown[]) => Promise<unknown>

/** How long a write of this call waits for rows. Only another call that writes briefly can have locked them. */
const WAIT_MS = '5000'

/** How long to keep trying to settle reservations that could not be charged with the outcome. */
const SETTLE_MS = 5_000

/** The result of the SQL function `acquire_end`. */
interface ToldEnd {
  readonly state: string
  /** Reservations that must be settled one by one. */
  readonly unsettled?: readonly ToldHold[]
}

interface ToldHold {
  readonly name: string
  readonly id: string
}

/** All claims commit first. The work is done under one lease. The end of the work is stored if every fence is still the same. */
export function acquireLeased(call: AcquireCall, leaseMs: number, handler: Handler): Promise<unknown> {
  return call.database.work(async () => {
    for (;;) {
      const { row, sentAt } = await begin(call)
      const verdict = call.judge(row)
      if (verdict.todo === 'answer') return call.answer(verdict.claim, false)
      if (verdict.todo === 'refuse') throw verdict.error
      if (verdict.todo === 'run') {
        const since = sinceWhen(verdict.told, leaseMs, sentAt, Number(row?.waited))
        return await new HeldClaims(call, verdict.told, leaseMs, since).work(handler)
      }
      await sleep(verdict.pauseMs)
    }
  })
}

async function begin(
  call: AcquireCall,
): Promise<{ readonly row: TextRow | undefined; readonly sentAt: number }> {
  let sentAt = 0
  try {
    const [row] = await sendSurely(call, acquireClaims, () => {
      sentAt = performance.now()
      return call.values()
    })
    return { row, sentAt }
  } catch (error) {
    const hasWaited = hasWaitedInVain(error)
    throw (hasWaited && call.once?.refuse()) || error
  }
}

/** When the first of the leases began, by this process's clock, or earlier. See `sinceWhen` of `once`. */
function sinceWhen(told: ToldAcquire, leaseMs: number, sentAt: number, waitedMs: number): number {
  const held = [told.once, ...told.results.map(({ claim, lock }) => claim ?? lock)]
  const ages = held.map((one) => leaseMs - (one?.leftMs ?? leaseMs))
  return sentAt + Math.max(0, waitedMs - 1 - told.tookMs) - Math.max(0, ...ages)
}

/** Leased claims that this process holds. */
class HeldClaims {
  readonly #call: AcquireCall
  readonly #told: ToldAcquire
  readonly #lease: Lease
  readonly #line: ReservedLine
  #isOver = false

  constructor(call: AcquireCall, told: ToldAcquire, leaseMs: number, sinceAt: number) {
    this.#call = call
    this.#told = told
    this.#line = lineOf(call.database)
    this.#line.enter()
    const fence = told.once?.fence ?? 0
    this.#lease = new Lease(
      () => this.#renew(leaseMs),
      leaseMs,
      sinceAt,
      (how) =>
        call.once?.lost(fence, how) ??
        new FenceLostError(call.describe(), fence, { isLate: how === 'deadline' }),
    )
  }

  async #renew(leaseMs: number): Promise<boolean> {
    const withinMs = Math.ceil(leaseMs / 3)
    const grants = this.#call.endings(this.#told, {
      isDone: false,
      text: null,
      keepsOnce: false,
      restMs: null,
    })
    const values = [grants, this.#call.holder, String(leaseMs), String(withinMs)]
    const rows = await this.#line
      .send(renewAcquired, values, withinMs)
      .catch(() => this.#call.database.sendPart(renewAcquired, values, withinMs))
    return rows[0]?.state === 'held'
  }

  async work(handler: Handler): Promise<unknown> {
    const { once, results } = this.#told
    const claim = once ?? results.find((one) => one.claim)?.claim
    const lease: AcquireLease = {
      idempotencyKey: claim?.id ?? this.#call.holder,
      attempt: claim?.attempt ?? 1,
      signal: this.#lease.signal,
    }
    try {
      lease.signal.throwIfAborted() // this process may have been suspended since it sent the request
      const { value, text } = await this.#read(await this.#run(handler, lease))
      if ((await this.#end({ isDone: true, text, keepsOnce: false, restMs: null })) !== 'lost') return value
      throw this.#call.once?.lost(once?.fence ?? 0, 'outcome') ?? new FenceLostError(this.#call.describe(), 0)
    } finally {
      this.#stop()
    }
  }

  /** Reads the outcome. The work is done, so an outcome that cannot be stored must not cause a repetition. */
  async #read(done: unknown): Promise<{ value: unknown; text: string | null }> {
    try {
      return readValue(this.#call, done)
    } catch (error) {
      const ending = {
        isDone: true,
        isUnkept: true,
        text: storeFailure(error),
        keepsOnce: true,
        restMs: null,
      }
      await this.#end(ending)
      throw error
    }
  }

  async #run(handler: Handler, lease: AcquireLease): Promise<unknown> {
    try {
      return await handler(lease, this.#call.grants(this.#told))
    } catch (error) {
      // Only `TransientError` and `SnoozeError` mean that nothing has happened.
      const saysSo = error instanceof TransientError || error instanceof SnoozeError
      const restMs = this.#call.holds && !saysSo ? 0 : null
      const ending = {
        isDone: false,
        text: storeFailure(error),
        keepsOnce: this.#call.keeps(error).once,
        restMs,
      }
      // If this write fails, the leases run out by themselves.
      await this.#end(ending).catch(() => {})
      throw error
    }
  }

  async #end(ending: Ending): Promise<string> {
    this.#stop()
    const call = this.#call
    const values = endValues(call, this.#told, ending, WAIT_MS, false)
    try {
      const [row] = await sendSurely(call, endAcquired, () => values)
      const { state, unsettled = [] }: ToldEnd = JSON.parse(`${row?.told}`)
      return unsettled.length > 0 && (await this.#settle(unsettled)) === 'lost' ? 'lost' : state
    } catch (error) {
      if (ending.isDone) {
        call.once?.emit('dibs:once.not-stored', { error })
        emit('dibs:acquire.not-stored', { ...call.database.origin, kinds: call.kinds, error })
      }
      throw new OutcomeNotStoredError(call.describe(), this.#told.once?.id ?? call.holder, { cause: error })
    }
  }

  /**
   * Charges reservations that ran out before the outcome was stored, and whose rows other callers have locked. The work is done, so it must be charged.
   * Returns `lost` if a reservation belongs to another call by now, and no other claim has a fence.
   */
  async #settle(grants: readonly ToldHold[]): Promise<'settled' | 'lost'> {
    const { database, holder, isFenced } = this.#call
    const until = performance.now() + SETTLE_MS
    let left = grants
    let isLost = false
    for (let tries = 1; left.length > 0 && performance.now() < until; tries++) {
      const still: ToldHold[] = []
      for (const grant of left) {
        if (performance.now() >= until) {
          still.push(grant)
          continue
        }
        const waitMs = Math.ceil(Math.max(10, (until - performance.now()) / (left.length + 1)))
        const values = [JSON.stringify(grant), holder, String(database.boundWait(waitMs))]
        const [row] = await database.sendPart(endHold, values).catch(() => [])
        if (!row) still.push(grant)
        isLost ||= row?.state === 'lost'
      }
      left = still
      if (left.length > 0) await sleep(fullJitterMs(tries, 20, 200))
    }
    for (const { name, id } of left) emit('dibs:acquire.unsettled', { ...database.origin, quota: name, id })
    return isLost && !isFenced ? 'lost' : 'settled'
  }

  #stop(): void {
    this.#lease.stop()
    if (!this.#isOver) this.#line.leave()
    this.#isOver = true
  }
}
