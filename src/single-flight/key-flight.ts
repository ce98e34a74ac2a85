import { ClosedError } from '../errors.js'
import type { GrantedLock, LockContext } from '../locks/lock-context.js'
import { lockTopic } from '../locks/lock-notifications.js'
import { pollDelayMs } from '../locks/poll-delay.js'
import { WakeupWaiter } from '../locks/wakeup-waiter.js'
import { sleep } from '../postgres/sleep.js'
import { readHeld } from '../postgres/this-process.js'
import { unlessAborted } from '../postgres/with-timeout.js'
import type { Ending, FlightCall } from './flight-call.js'
import { endingWith, type PollResult, pollFlight, readPolled } from './flight-poll.js'
import { leadLockName } from './flight-spec.js'
import { LeasedLoad, type LoadEnd } from './leased-load.js'
import type { RunningLoads } from './running-loads.js'

interface Callers {
  /** The callers before the load began. They get its value in any case. */
  readonly present: ReadonlySet<FlightCall>
  /** The callers when the load had ended. They get its value unless the key was forgotten meanwhile, perhaps before they came. */
  readonly waiting: readonly FlightCall[]
}

/** How often in a row a flight may load and lose the lead without a value. */
const MAX_LOADS = 3

/** With this many hanging loads for one key, this process starts no other. */
const MAX_HANGING = 3

/** How long a process with a hanging load leaves the lead to other processes. */
const YIELD_MS = 200

/**
 * All callers of one process for one key. They share polls and loads. The result of a poll is only for the callers that were there when it was sent, so that
 * no caller gets a value that was read before its call.
 */
export class KeyFlight {
  readonly #context: LockContext
  readonly #key: string
  readonly #running: RunningLoads
  readonly #onEnd: () => void
  readonly #calls = new Set<FlightCall>()
  readonly #waiter: WakeupWaiter
  /** The fence of the load of this process that callers wait for. */
  #leadingFence: number | undefined
  #isClosed = false
  #loads = 0
  #hasYielded = false
  /** The error of the last poll. Undefined if that poll reached the database. */
  fault: unknown
  /** The remaining lease of the load in another process. */
  leftMs: number | undefined
  /** The holder of that load, and the end of its lease. */
  held: ReturnType<typeof readHeld> = {}

  /** @param running the loads of all flights of the process. A flight ends when no caller waits any more, but its loads may hang. */
  constructor(context: LockContext, key: string, running: RunningLoads, onEnd: () => void) {
    this.#context = context
    this.#key = key
    this.#running = running
    this.#onEnd = onEnd
    this.#waiter = new WakeupWaiter(context.wakeups, lockTopic(leadLockName(key)))
  }

  join(call: FlightCall): void {
    this.#calls.add(call)
    if (this.#leadingFence !== undefined) this.#waitForOwnLoad(call)
    // The next poll tells whether the caller waits for a load in another process.
    this.#waiter.interrupt()
  }

  leave(call: FlightCall): void {
    this.#calls.delete(call)
    if (this.#calls.size === 0) this.#waiter.interrupt()
  }

  /** The end of the load decides whether this caller gets its value. */
  #waitForOwnLoad(call: FlightCall): void {
    call.hasWaited = true
    call.behind = 'this process'
    if (call.spec.waitMs === 0) call.end({ how: 'timed out' })
  }

  /** Ends all waits for loads of other processes. */
  stopWaiting(): void {
    this.#isClosed = true
    for (const call of [...this.#calls])
      if (call.behind !== 'this process') call.end({ how: 'error', error: new ClosedError() })
  }

  /** Ends all waits for loads of this process too. */
  close(): void {
    this.#endAll({ how: 'error', error: new ClosedError() })
  }

  /** Polls and loads until no caller waits. Never rejects. */
  async run(): Promise<void> {
    try {
      for (let poll = 1, busyPolls = 0; this.#calls.size > 0; poll++) {
        this.#waiter.clear()
        const polled = await this.#poll()
        if (!polled) continue
        const { result } = polled
        busyPolls = result.state === 'busy' ? busyPolls + 1 : 0
        if (await this.#distribute(polled)) continue
        const refusal = {
          state: result.state === 'held' ? ('held' as const) : ('busy' as const),
          leftMs: this.leftMs,
        }
        await this.#pause(pollDelayMs(refusal, poll, busyPolls))
      }
    } catch (error) {
      this.#endAll({ how: 'error', error })
    } finally {
      this.#waiter.unsubscribe()
      this.#onEnd()
    }
  }

  /** Waits until a notification or a new caller comes, or the last caller has gone. */
  async #pause(ms: number): Promise<void> {
    const hasNewCaller = [...this.#calls].some(({ after }) => after === undefined)
    if (!hasNewCaller) await this.#sleep(ms)
  }

  #endAll(ending: Ending): void {
    for (const call of [...this.#calls]) call.end(ending)
  }

  /** Returns undefined if no caller waits any more. */
  async #poll(): Promise<PollResult | undefined> {
    const polled = await pollFlight(this.#context, this.#key, this.#calls, {
      onFailure: (error, isPersistent) => {
        this.fault = error
        for (const call of [...this.#calls])
          if (isPersistent && (call.spec.ifBusy === 'load' || call.spec.waitMs === 0))
            call.end({ how: 'timed out', error })
        // A notification that came meanwhile would end the pause at once. The next poll comes in any case.
        this.#waiter.clear()
      },
      wait: (ms) => this.#sleep(ms),
    })
    if (polled) this.fault = undefined
    return polled
  }

  async #sleep(ms: number): Promise<void> {
    if (this.#calls.size > 0) await this.#waiter.wait(ms)
  }

  /** Gives the result of a poll to its callers. Returns false if callers have to wait. */
  async #distribute(polled: PollResult): Promise<boolean> {
    const { result, callers, after } = polled
    switch (result.state) {
      case 'fresh':
      case 'stale':
        if (result.lead) this.#refresh(result.lead, polled)
        for (const [n, call] of callers.entries()) call.end(readPolled(polled, n === 0))
        return true
      case 'ended':
      case 'failed': {
        // A kept failure is for all callers. Only a poll that waits for no load returns it.
        const isForAll = result.state === 'failed' && after === undefined
        const served = callers.filter((call) => isForAll || Number(call.after ?? Number.NaN) <= result.fence)
        for (const [n, call] of served.entries()) call.end(readPolled(polled, n === 0))
        return served.length > 0
      }
      case 'lead':
        await this.#lead(result.lead, polled)
        return true
      default:
        this.leftMs = result.leftMs ?? undefined
        this.held = readHeld(result)
        for (const call of callers) if (!call.isOver) call.onHeld(result.after, this.#sideOf(result.holder))
        // When the instance was closed, these callers may have waited for this process.
        if (this.#isClosed) this.stopWaiting()
        return false
    }
  }

  /** Where the load runs. A background load of this process is recognized by its holder. */
  #sideOf(holder: string | null | undefined): FlightCall['behind'] {
    if (typeof holder !== 'string') return undefined
    return this.#running.has(this.#key, holder) ? 'this process' : 'another process'
  }

  /** Loads a new value in the background. No caller waits for it. A failure is only emitted as an event. */
  #refresh(lead: GrantedLock, { callers, sentAt }: PollResult): void {
    const present = callers.find(({ isOver }) => !isOver)
    const own = present ?? callers[0]
    if (!own) return
    const { database } = this.#context
    const load = new LeasedLoad(this.#context, own.spec, lead, { sentAt, isBackground: true })
    // No load starts if all callers have gone.
    const mayLoad = present && !this.#isClosed && this.#running.of(this.#key) < MAX_HANGING
    const onEnd = mayLoad ? this.#running.begin(this.#key, lead.holder) : undefined
    database.finish(onEnd ? load.run().then(onEnd) : load.releaseLead())
  }

  async #lead(lead: GrantedLock, { callers, sentAt }: PollResult): Promise<void> {
    const present = callers.filter(({ isOver }) => !isOver)
    const own = present[0] ?? callers[0]
    if (!own) return
    const load = new LeasedLoad(this.#context, own.spec, lead, { sentAt, isBackground: false })
    if (present.length === 0) return await load.releaseLead()
    if (this.#isClosed) {
      this.close()
      return await load.releaseLead()
    }
    for (const call of present) call.behind = 'this process'
    const hanging = this.#running.of(this.#key)
    if (hanging >= MAX_HANGING) {
      for (const call of present) call.end({ how: 'timed out' })
      return await load.releaseLead()
    }
    // A process whose load hangs leaves the lead to another process once.
    if (hanging > 0 && !this.#hasYielded) {
      this.#hasYielded = true
      await load.releaseLead()
      return await sleep(YIELD_MS)
    }
    this.#hasYielded = false
    own.stopTimer()
    this.#leadingFence = load.fence
    // These callers came during the poll.
    for (const call of [...this.#calls]) if (!present.includes(call)) this.#waitForOwnLoad(call)
    this.#loads++
    const onEnd = this.#running.begin(this.#key, lead.holder)
    let waiting: readonly FlightCall[] = []
    const finished = load
      .run(() => {
        waiting = [...this.#calls]
      })
      .then((end) => {
        onEnd()
        this.#finishLoad(end, load.fence, { present: new Set(present), waiting })
      })
    const isLost = await unlessAborted(
      finished.then(() => false),
      load.signal,
    ).catch((error) => {
      if (error !== load.signal.reason) throw error
      return true
    })
    this.#leadingFence = undefined
    if (isLost) {
      // The load may hang. Its callers take the value of the next load.
      for (const call of present) call.after = load.fence + 1
      this.#context.database.finish(finished)
    }
    // Without a value, this caller now waits for another load, as the others do.
    own.startTimer() // guard: flight.lost-wait
  }

  #finishLoad(end: LoadEnd, fence: number, { present, waiting }: Callers): void {
    const { loaded, how, isForgotten, newer } = end
    // Later callers get the value only if it was kept. A refused value may be older than what these callers know.
    const receivers = waiting.filter((call) => present.has(call) || (how === 'published' && !isForgotten))
    const isLost = how === 'refused' && newer === undefined && 'error' in loaded
    if (how === 'published' && 'json' in loaded) this.#loads = 0
    const isFollowed = this.#leadingFence !== undefined && this.#leadingFence !== fence
    // guard: flight.max-loads
    if (isLost && (this.#loads < MAX_LOADS || isFollowed)) {
      // The load was too slow, or was aborted by its signal. The process that has the lead now loads the value.
      for (const call of present) call.after = fence + 1
      return
    }
    for (const call of receivers)
      if (newer) call.end(endingWith(newer.json, newer.fence))
      else if ('error' in loaded) call.end({ how: 'error', error: loaded.error })
      else call.end(endingWith(loaded.json, fence))
  }
}
