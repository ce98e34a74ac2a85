import { randomUUID } from 'node:crypto'
import { BusyError, ClosedError, CommitOutcomeUnknownError, ConnectionLostError } from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import { sleep } from '../postgres/sleep.js'
import { restoreShared } from '../postgres/stored-failure.js'
import { readHeld, THIS_PROCESS } from '../postgres/this-process.js'
import { unlessAborted } from '../postgres/with-timeout.js'
import { Bell } from './bell.js'
import type { Ending, FlightCall } from './flight-call.js'
import { FlightLead, type LeadEnd, readLoaded } from './flight-lead.js'
import { leadMs, leadOf } from './flight-spec.js'
import { beginFlight } from './flight-statements.js'
import { giveBackUnseen } from './give-back-unseen.js'
import type { LockParts, ToldLock } from './held-lock.js'
import { topicOf } from './lock-origin.js'
import { POLL_MS, pauseMs, wantedMs } from './look-again.js'
import type { RunningLoads } from './running-loads.js'

/** What `flight_begin` says. */
type Told =
  | {
      readonly state: 'fresh' | 'stale' | 'ended'
      readonly fence: number
      readonly isVoid: boolean
      readonly value: unknown
      readonly lead?: ToldLock | null
    }
  | { readonly state: 'failed'; readonly fence: number; readonly failure: unknown }
  | { readonly state: 'lead'; readonly lead: ToldLock }
  | {
      readonly state: 'held' | 'busy'
      readonly after: number
      readonly holder?: string | null
      readonly leftMs?: number | null
      readonly leaseUntil?: number | null
    }

interface Answer {
  readonly text: string
  readonly told: Told
  /** Who was there when it was asked: whoever has come since may know of something that the answer does not. */
  readonly asked: readonly FlightCall[]
  /** What those who wait were said to take. */
  readonly after: number | undefined
  /** By `performance.now()`. */
  readonly sentAt: number
}

interface Callers {
  /** Who was there before a load began: it is theirs in any case. */
  readonly present: ReadonlySet<FlightCall>
  /** Who was there when it had ended: it is theirs unless the key was forgotten meanwhile, perhaps before they came. */
  readonly waiting: readonly FlightCall[]
}

/** Nobody is there any more to ask for. */
class NobodyError extends Error {}

/** The server may be back, and a connection free, before the time is over. */
const passing = [CommitOutcomeUnknownError, ConnectionLostError, BusyError]

/** It never waits on the server: a longer silence is that of the network. */
const ANSWER_MS = 5_000

/** A server that is away is tried so often, or for so long, before those who would rather load by themselves do. */
const MIN_TRIES = 4
const MIN_TRYING_MS = 1_000

/** How often in a row one flight loads and loses the lead, each time without a value. */
const MAX_LOADS = 3

/** So many loads of a process for one key may hang; then it begins no other. */
const MAX_HANGING = 3
const YIELD_MS = 200

/**
 * All callers of one process for one key: they ask the database together, and load together. It asks on behalf of those who are there, and what it learns is for
 * these alone; whoever comes later is asked for again. So nobody is given what was read before its call.
 */
export class KeyFlight {
  readonly #parts: LockParts
  readonly #key: string
  readonly #running: RunningLoads
  readonly #onEnd: () => void
  readonly #calls = new Set<FlightCall>()
  readonly #bell: Bell
  /** The fence of the load that is waited for. */
  #leading: number | undefined
  #isClosed = false
  #loads = 0
  #hasYielded = false
  /** What went wrong when the database was last asked. */
  fault: unknown
  /** What is left of the lease of whoever loads. */
  leftMs: number | undefined
  /** The holder of the load that is waited for, and the end of its lease. */
  held: ReturnType<typeof readHeld> = {}

  /** @param running those of all flights of the process: one ends when nobody waits any more, and its loads may hang on */
  constructor(parts: LockParts, key: string, running: RunningLoads, onEnd: () => void) {
    this.#parts = parts
    this.#key = key
    this.#running = running
    this.#onEnd = onEnd
    this.#bell = new Bell(parts.wakeups, topicOf(leadOf(key)))
  }

  join(call: FlightCall): void {
    this.#calls.add(call)
    if (this.#leading !== undefined) this.#putBehindOwn(call)
    // So that it is known to wait for the load that is under way elsewhere.
    this.#bell.interrupt()
  }

  leave(call: FlightCall): void {
    this.#calls.delete(call)
    if (this.#calls.size === 0) this.#bell.interrupt()
  }

  /** Whether it may have what comes of this load is known at its end: so it takes nothing before. */
  #putBehindOwn(call: FlightCall): void {
    call.hasWaited = true
    call.behind = 'this process'
    if (call.spec.waitMs === 0) call.end({ how: 'timed out' })
  }

  /** Nobody waits any longer for what another process does. */
  stopWaiting(): void {
    this.#isClosed = true
    for (const call of [...this.#calls])
      if (call.behind !== 'this process') call.end({ how: 'error', error: new ClosedError() })
  }

  /** Nor for what this one does. */
  close(): void {
    this.#endAll({ how: 'error', error: new ClosedError() })
  }

  /** Until nobody is there. Never fails. */
  async run(): Promise<void> {
    try {
      for (let turn = 1, busyLooks = 0; this.#calls.size > 0; turn++) {
        this.#bell.forget()
        const answer = await this.#ask()
        if (!answer) continue
        const { told } = answer
        busyLooks = told.state === 'busy' ? busyLooks + 1 : 0
        if (await this.#take(answer)) continue
        const refusal = {
          state: told.state === 'held' ? ('held' as const) : ('busy' as const),
          leftMs: this.leftMs,
        }
        await this.#pause(pauseMs(refusal, turn, busyLooks))
      }
    } catch (error) {
      this.#endAll({ how: 'error', error })
    } finally {
      this.#bell.stop()
      this.#onEnd()
    }
  }

  /** Until a hint comes, or somebody, or the last has gone. */
  async #pause(ms: number): Promise<void> {
    const isAnybodyNew = [...this.#calls].some(({ after }) => after === undefined)
    if (!isAnybodyNew) await this.#sleep(ms)
  }

  #endAll(ending: Ending): void {
    for (const call of [...this.#calls]) call.end(ending)
  }

  /** Undefined: it failed, and everybody who must know does; or nobody is there any more. */
  async #ask(): Promise<Answer | undefined> {
    const holder = `${THIS_PROCESS}/${randomUUID()}`
    const [first] = this.#calls
    if (!first) return undefined
    const { refreshEarly } = first.spec
    const leaseMs = leadMs(first.spec)
    const early = refreshEarly === 0 ? 0 : -Math.log(1 - Math.random()) * refreshEarly
    const startedAt = performance.now()
    let mayHold = false
    const recall = (): undefined => {
      if (mayHold)
        void giveBackUnseen(this.#parts, { name: leadOf(this.#key), holder }, leaseMs).catch(() => {})
    }
    for (let failures = 1; ; failures++) {
      if (this.#calls.size === 0) return recall()
      const after = this.#leastAfter()
      const values = [this.#key, after === undefined ? null : String(after), holder]
      let asked: readonly FlightCall[] = []
      let sentAt = 0
      try {
        const [row] = await this.#parts.database.sendPart(
          beginFlight,
          [...values, String(leaseMs), String(wantedMs(POLL_MS)), String(early)],
          ANSWER_MS,
          () => {
            asked = [...this.#calls]
            if (asked.length === 0) throw new NobodyError()
            // The lease lasts from here on: not while others had the pool.
            sentAt = performance.now()
          },
        )
        this.fault = undefined
        const text = `${row?.told}`
        return { text, told: JSON.parse(text), asked, after, sentAt }
      } catch (error) {
        if (error instanceof NobodyError) return recall()
        mayHold ||= error instanceof CommitOutcomeUnknownError
        this.fault = error
        if (!passing.some((type) => error instanceof type)) {
          recall()
          this.#endAll({ how: 'error', error })
          return undefined
        }
        const isTried = failures >= MIN_TRIES || performance.now() - startedAt >= MIN_TRYING_MS
        for (const call of [...this.#calls])
          if (isTried && (call.spec.ifBusy === 'load' || call.spec.waitMs === 0))
            call.end({ how: 'timed out', error })
        // A hint that has come meanwhile would end each pause at once: it is asked again in any case.
        this.#bell.forget()
        await this.#sleep(fullJitterMs(failures, 20, 500))
      }
    }
  }

  /** Whoever takes more than the others is told apart by its own. */
  #leastAfter(): number | undefined {
    let least: number | undefined
    for (const { after } of this.#calls)
      if (after !== undefined && (least === undefined || after < least)) least = after
    return least
  }

  async #sleep(ms: number): Promise<void> {
    if (this.#calls.size > 0) await this.#bell.wait(ms)
  }

  /** Hands out what there is; false if somebody is left who has to wait. */
  async #take(answer: Answer): Promise<boolean> {
    const { told, asked, after } = answer
    switch (told.state) {
      case 'fresh':
      case 'stale':
        if (told.lead) this.#refresh(told.lead, answer)
        for (const [n, call] of asked.entries()) call.end(readAnswer(answer, n === 0))
        return true
      case 'ended':
      case 'failed': {
        // A failure that is kept is for everybody, which is asked for without waiting for anything.
        const isForAll = told.state === 'failed' && after === undefined
        const ends = asked.filter((call) => isForAll || Number(call.after ?? Number.NaN) <= told.fence)
        for (const [n, call] of ends.entries()) call.end(readAnswer(answer, n === 0))
        return ends.length > 0
      }
      case 'lead':
        await this.#lead(told.lead, answer)
        return true
      default:
        this.leftMs = told.leftMs ?? undefined
        this.held = readHeld(told)
        for (const call of asked) if (!call.isOver) call.onHeld(told.after, this.#sideOf(told.holder))
        // It was this process that they waited for when it was closed.
        if (this.#isClosed) this.stopWaiting()
        return false
    }
  }

  /** Where it is loaded. What is loaded in the background has no caller to know it by. */
  #sideOf(holder: string | null | undefined): FlightCall['behind'] {
    if (typeof holder !== 'string') return undefined
    return this.#running.has(this.#key, holder) ? 'this process' : 'another process'
  }

  /** Nobody waits for it, and nobody hears if it fails but who listens to events. */
  #refresh(lead: ToldLock, { asked, sentAt }: Answer): void {
    const present = asked.find(({ isOver }) => !isOver)
    const own = present ?? asked[0]
    if (!own) return
    const { database } = this.#parts
    const flight = new FlightLead(this.#parts, own.spec, lead, { sentAt, isBackground: true })
    // Nothing begins for those who have gone.
    const mayLoad = present && !this.#isClosed && this.#running.of(this.#key) < MAX_HANGING
    const onEnd = mayLoad ? this.#running.begin(this.#key, lead.holder) : undefined
    database.finish(onEnd ? flight.run().then(onEnd) : flight.giveBack())
  }

  async #lead(lead: ToldLock, { asked, sentAt }: Answer): Promise<void> {
    const present = asked.filter(({ isOver }) => !isOver)
    const own = present[0] ?? asked[0]
    if (!own) return
    const flight = new FlightLead(this.#parts, own.spec, lead, { sentAt, isBackground: false })
    if (present.length === 0) return await flight.giveBack()
    if (this.#isClosed) {
      this.close()
      return await flight.giveBack()
    }
    for (const call of present) call.behind = 'this process'
    const hanging = this.#running.of(this.#key)
    if (hanging >= MAX_HANGING) {
      for (const call of present) call.end({ how: 'timed out' })
      return await flight.giveBack()
    }
    // A process whose load hangs leaves it to another once: that one may do better.
    if (hanging > 0 && !this.#hasYielded) {
      this.#hasYielded = true
      await flight.giveBack()
      return await sleep(YIELD_MS)
    }
    this.#hasYielded = false
    own.stopTimer()
    this.#leading = flight.fence
    // Who has come while it was asked for.
    for (const call of [...this.#calls]) if (!present.includes(call)) this.#putBehindOwn(call)
    this.#loads++
    const onEnd = this.#running.begin(this.#key, lead.holder)
    let waiting: readonly FlightCall[] = []
    const landed = flight
      .run(() => {
        waiting = [...this.#calls]
      })
      .then((end) => {
        onEnd()
        this.#land(end, flight.fence, { present: new Set(present), waiting })
      })
    const isLost = await unlessAborted(
      landed.then(() => false),
      flight.signal,
    ).catch((error) => {
      if (error !== flight.signal.reason) throw error
      return true
    })
    this.#leading = undefined
    if (isLost) {
      // It may hang. Whoever waits for it waits for the next one as well, and takes what is there first.
      for (const call of present) call.after = flight.fence + 1
      this.#parts.database.finish(landed)
    }
    // If it has no value by now, it waits for that of another as anybody does.
    own.startTimer()
  }

  #land(end: LeadEnd, fence: number, { present, waiting }: Callers): void {
    const { loaded, how, isForgotten, newer } = end
    // Who has come since then may have it only if it was kept: one that was refused may be older than what they know of.
    const mayHave = waiting.filter((call) => present.has(call) || (how === 'published' && !isForgotten))
    const isLost = how === 'refused' && newer === undefined && 'error' in loaded
    if (how === 'published' && 'json' in loaded) this.#loads = 0
    const isFollowed = this.#leading !== undefined && this.#leading !== fence
    if (isLost && (this.#loads < MAX_LOADS || isFollowed)) {
      // It has failed since it was too slow, or because it was told so: whoever has the lead now does better.
      for (const call of present) call.after = fence + 1
      return
    }
    for (const call of mayHave)
      if (newer) call.end(valueIn(newer.json, newer.fence))
      else if ('error' in loaded) call.end({ how: 'error', error: loaded.error })
      else call.end(valueIn(loaded.json, fence))
  }
}

const valueIn = (json: string | null, fence?: number): Ending => ({
  how: 'value',
  read: () => readLoaded(json),
  fence,
})

/** It was read once to see what it is; whoever comes first may have that. */
function readAnswer({ told, text }: Answer, isFirst: boolean): Ending {
  if (told.state === 'failed') return { how: 'error', error: restoreShared(told.failure) }
  if (!('value' in told)) return valueIn(null)
  const { fence, isVoid, value } = told
  if (isVoid) return valueIn(null, fence)
  return { how: 'value', read: () => (isFirst ? value : JSON.parse(text).value), fence }
}
