import { CommitOutcomeUnknownError, DibsError } from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import { MAX_TIMER_MS } from '../postgres/check-duration.js'
import { emit } from '../postgres/events.js'
import { sleep } from '../postgres/sleep.js'
import { textArray } from '../postgres/text-values.js'
import { queueTopic, wasRefused } from './add-jobs.js'
import { type Block, type ClaimedJob, readBlock } from './claimed-job.js'
import type { Top } from './cursors.js'
import type { EngineParts } from './engine-parts.js'
import type { JobLine } from './job-line.js'
import { claimCarefully, claimJobs, giveStraysBack, probeJobs } from './job-statements.js'

/** A lane as those who run it see it. */
export interface Lane {
  readonly id: number
  readonly queue: string
  readonly leaseMs: number
}

/** A worker as its fetcher sees it. */
export interface Member {
  readonly id: string
  /** How many jobs it would take now, beside those that were asked for. */
  readonly wants: number
  /** So many are asked for, or not any more. */
  reserve(count: number): void
  take(jobs: readonly ClaimedJob[], sentAt: number): void
  /** The jobs whose handlers run, also those that it has lost. */
  readonly running: Iterable<number>
}

/** How many are claimed with one statement: the next one goes while these are run. Fewer after a failure, since their inputs may be more than can be sent in time. */
const MOST = 500
/** A look from the start takes a twentieth of the time, unless it takes longer than `MAX_REST_MS` allows for, and while there is enough to do elsewhere it comes once a second. One that has found as many as there was room for is
 * followed by the next: each of them may have a priority of its own. */
const REST = 20
const PROBE_MS = 1_000
/** If they take longer than this, and than four claims, they go beside the claims also when there is not enough to do, over a connection of their own: rows that nobody can vacuum are in their way, and neither what is new nor
 * heartbeats are to wait for them. */
const SLOW_MS = 20
const SLOW_CLAIMS = 4
/** However long one took: this process may have stood still meanwhile. */
const MAX_REST_MS = 2_000
/** A row that cannot be claimed, nor set aside, is met again from the start: not before this. */
const STUCK_MS = 5_000
const PAUSED_MS = 20

type Demand = readonly { readonly member: Member; readonly count: number }[]

/** See `job_probe` in sql/0022_job_claim.sql. */
interface Told {
  readonly blocks: readonly Block[]
  readonly tops: readonly Top[]
}

interface Fetched {
  readonly jobs: readonly ClaimedJob[]
  readonly isFull: boolean
  readonly tops: readonly Top[]
  readonly tookMs: number
}

interface Careful {
  readonly blocks: readonly Block[]
  readonly setAside: readonly number[]
  readonly stuck: readonly number[]
}

/**
 * Claims jobs of some lanes for all workers of this instance that run them, and no more than they have room for. While there is enough to do, claims go on where the last has
 * ended; now and then, and before it rests, it looks from the start, beside the claims. It rests until a hint comes, or until the next poll.
 */
export class Fetcher {
  readonly #engine: EngineParts
  readonly #lanes: readonly Lane[]
  readonly #members = new Set<Member>()
  readonly #unsubscribe: (() => void)[] = []
  #pollMs = Number.POSITIVE_INFINITY
  #isRunning = false
  /** Where the next claim looks. */
  #mode: 'places' | 'start' | 'rest' = 'start'
  #isHinted = false
  #probeAt = 0
  /** How long the last look from the start took, and that before: one that took long may have been unlucky. */
  #tookMs: readonly [number, number] = [0, 0]
  #claimMs = Number.POSITIVE_INFINITY
  /** The last claim has found as many as there was room for. */
  #isEnough = false
  /** The connection for looks that take long is kept. */
  #keepsLine = false
  /** A look beside the claims; whether it may have left something. */
  #probing: Promise<boolean> | undefined
  /** It has, and nobody has gone there yet. */
  #isLeft = false
  /** A hint has come while it was under way: what that is about it may not have seen. */
  #isOutdated = false
  #failures = 0
  #most = MOST
  #mayHaveStrays = false
  #turn = 0
  #bell: (() => void) | undefined

  constructor(engine: EngineParts, lanes: readonly Lane[]) {
    this.#engine = engine
    this.#lanes = lanes
  }

  join(member: Member, pollMs: number): void {
    this.#members.add(member)
    this.#pollMs = Math.min(this.#pollMs, pollMs)
    this.#mode = 'start'
    if (this.#isRunning) {
      this.poke()
      return
    }
    this.#isRunning = true
    for (const queue of new Set(this.#lanes.map(({ queue }) => queue)))
      this.#unsubscribe.push(this.#engine.wakeups.subscribe(queueTopic(queue), () => this.#onHint()))
    void this.#run()
  }

  leave(member: Member): void {
    this.#members.delete(member)
    if (this.#members.size > 0) return
    this.#pollMs = Number.POSITIVE_INFINITY
    this.poke()
  }

  /** Somebody has room. */
  poke(): void {
    this.#bell?.()
  }

  #onHint(): void {
    this.#isHinted = true
    this.#isOutdated ||= this.#probing !== undefined
    this.poke()
  }

  async #run(): Promise<void> {
    // A pool that its owner has ended can run no handler, though the connections for claims are not of it.
    while (this.#members.size > 0 && !this.#engine.isOver && !this.#engine.database.pool.ended) {
      const demand = this.#demand(this.#most)
      if (demand.length === 0) await this.#wait(Number.POSITIVE_INFINITY)
      else if (this.#mode === 'rest' && !this.#isHinted) await this.#rest()
      else await this.#fetch(demand)
    }
    for (const stop of this.#unsubscribe.splice(0)) stop()
    this.#keepLine(false)
    this.#isRunning = false
  }

  #demand(most: number): Demand {
    const demand: { member: Member; count: number }[] = []
    let left = most
    for (const member of this.#members) {
      const count = Math.min(left, member.wants)
      if (count <= 0) continue
      demand.push({ member, count })
      left -= count
    }
    return demand
  }

  /** Until the bell rings, or so long. */
  async #wait(ms: number): Promise<void> {
    let timer: NodeJS.Timeout | undefined
    await new Promise<void>((resolve) => {
      this.#bell = resolve
      if (ms < Number.POSITIVE_INFINITY) timer = setTimeout(resolve, Math.min(ms, MAX_TIMER_MS))
    })
    clearTimeout(timer)
    this.#bell = undefined
  }

  /** Until a hint, or the next poll. A worker that has room says so as well, and that is no reason to look. */
  async #rest(): Promise<void> {
    const until = performance.now() + this.#pollMs * (0.75 + Math.random() / 2)
    while (!this.#isHinted && this.#members.size > 0 && this.#mode === 'rest') {
      const leftMs = until - performance.now()
      if (leftMs <= 0) break
      await this.#wait(leftMs)
    }
    if (this.#mode === 'rest') this.#mode = 'start'
  }

  async #fetch(demand: Demand): Promise<void> {
    const isHinted = this.#isHinted
    const restMs = this.#probeAt - performance.now()
    const mayProbe = restMs <= 0
    if (this.#mode === 'rest') this.#mode = 'start'
    if (this.#mode === 'start' && !mayProbe && !isHinted) return await this.#wait(restMs)
    const waitMs = this.#engine.breaker.enter()
    if (waitMs > 0) return await this.#wait(waitMs)
    this.#isHinted = false
    try {
      if (this.#mayHaveStrays) await this.#giveStraysBack()
      if (this.#mode === 'start' && mayProbe && !this.#goesBeside(demand)) {
        const isMore = await this.#probe(demand, this.#engine.claims)
        this.#mode = isMore ? 'places' : 'rest'
      } else {
        const isFull = await this.#claim(this.#shareWithProbe(demand, mayProbe))
        if (isFull || this.#isLeft) this.#mode = 'places'
        else this.#mode = this.#probing && this.#goesBeside(demand) ? 'rest' : 'start'
        this.#isLeft = false
      }
      this.#failures = 0
      this.#most = Math.min(MOST, this.#most * 2)
      this.#engine.onAnswer()
    } catch (error) {
      await this.#recover(error, demand)
    }
  }

  get #isSlow(): boolean {
    const tookMs = Math.min(...this.#tookMs)
    return tookMs > SLOW_MS && tookMs > SLOW_CLAIMS * this.#claimMs
  }

  #keepLine(isWanted: boolean): void {
    if (isWanted === this.#keepsLine) return
    this.#keepsLine = isWanted
    if (isWanted) this.#engine.looks.enter()
    else this.#engine.looks.leave()
  }

  /** With room for one there is nothing to share. */
  #goesBeside([first]: Demand): boolean {
    return this.#isSlow && first !== undefined && first.count > 1
  }

  /** While there is enough to do, a part of what there is room for is left to a look from the start. */
  #shareWithProbe(demand: Demand, mayProbe: boolean): Demand {
    if (!mayProbe || this.#probing) return demand
    const [first, ...rest] = demand
    if (!first) return demand
    const share = Math.max(1, Math.floor(first.count / 2))
    this.#isOutdated = false
    const line = this.#isSlow ? this.#engine.looks : this.#engine.upkeep
    this.#probing = this.#probe([{ member: first.member, count: share }], line).then(
      (isMore) => this.#onProbed(isMore),
      (error) => this.#onProbeFailed(error),
    )
    const left = first.count - share
    return left > 0 ? [{ member: first.member, count: left }, ...rest] : rest
  }

  #onProbed(isMore: boolean): boolean {
    this.#probing = undefined
    this.#isLeft = isMore
    if (isMore) this.#goOn('places')
    else if (this.#isOutdated) this.#goOn('start')
    return isMore
  }

  /** The next does not go beside the claims, and what is wrong is found out there. */
  #onProbeFailed(error: unknown): boolean {
    this.#probing = undefined
    this.#mayHaveStrays ||= isUnknown(error)
    this.#tookMs = [0, 0]
    this.#keepLine(false)
    this.#probeAt = performance.now() + PROBE_MS
    this.#goOn('start')
    return true // for all that is known
  }

  /** If it rests. */
  #goOn(mode: 'places' | 'start'): void {
    if (this.#mode !== 'rest') return
    this.#mode = mode
    this.#isLeft = false
    this.poke()
  }

  async #claim(demand: Demand): Promise<boolean> {
    if (demand.length === 0) return (await this.#probing) ?? false
    const places = this.#engine.cursors.places(this.#lanes.map(({ id }) => id))
    const column = (value: (place: (typeof places)[number]) => number): string =>
      `{${places.map(value).join(',')}}`
    const leases = new Map(this.#lanes.map(({ id, leaseMs }) => [id, leaseMs]))
    const { jobs, isFull, tookMs } = await this.#ask(this.#engine.claims, demand, (counts) => [
      claimJobs,
      [
        ...counts,
        column(({ lane }) => lane),
        column(({ priority }) => priority),
        column(({ after }) => after),
        column(({ lane }) => leases.get(lane) as number),
      ],
    ])
    this.#claimMs = tookMs
    this.#isEnough = isFull
    this.#engine.cursors.pass(jobs)
    return isFull
  }

  /** True if there is more. */
  async #probe(demand: Demand, line: JobLine): Promise<boolean> {
    const turn = this.#turn++ % this.#lanes.length
    const lanes = [...this.#lanes.slice(turn), ...this.#lanes.slice(0, turn)]
    const { jobs, isFull, tops, tookMs } = await this.#ask(line, demand, (counts) => [
      probeJobs,
      [
        ...counts,
        `{${lanes.map(({ id }) => id).join(',')}}`,
        `{${lanes.map(({ leaseMs }) => leaseMs).join(',')}}`,
      ],
    ])
    this.#engine.cursors.pass(jobs)
    const isBehind = this.#engine.cursors.find(tops)
    this.#tookMs = [tookMs, this.#tookMs[0]]
    // The last worker may have left meanwhile.
    this.#keepLine(this.#isSlow && this.#isRunning)
    const restMs = Math.max(REST * Math.min(...this.#tookMs), this.#isEnough && !isBehind ? PROBE_MS : 0)
    const isFollowed = isFull && !this.#isEnough
    this.#probeAt = performance.now() + (isFollowed ? 0 : Math.min(MAX_REST_MS, restMs))
    return tops.length > 0
  }

  /** Asks for so many for each, and hands out what there is. */
  async #ask(
    line: JobLine,
    demand: Demand,
    statementOf: (counts: readonly [string, string]) => readonly [typeof claimJobs, readonly string[]],
  ): Promise<Fetched> {
    for (const { member, count } of demand) member.reserve(count)
    try {
      const counts = [
        textArray(demand.map(({ member }) => member.id)),
        `{${demand.map(({ count }) => count).join(',')}}`,
      ] as const
      const [statement, values] = statementOf(counts)
      for (;;) {
        const sentAt = performance.now()
        const [row] = await line.send(statement, values)
        const tookMs = performance.now() - sentAt
        // A queue is just being paused.
        if (row?.told == null) await sleep(PAUSED_MS)
        else {
          const told: Told | readonly Block[] = JSON.parse(row.told)
          const { blocks, tops } = 'tops' in told ? told : { blocks: told, tops: [] }
          return { ...this.#handOut(blocks, demand, sentAt), tops, tookMs }
        }
      }
    } finally {
      for (const { member, count } of demand) member.reserve(-count)
    }
  }

  #handOut(
    blocks: readonly Block[],
    demand: Demand,
    sentAt: number,
  ): { jobs: ClaimedJob[]; isFull: boolean } {
    const jobs: ClaimedJob[] = []
    for (const block of blocks) {
      const own = readBlock(block)
      jobs.push(...own)
      // Also if it has left meanwhile: it gives them back.
      demand.find(({ member }) => member.id === block.worker)?.member.take(own, sentAt)
    }
    return { jobs, isFull: jobs.length >= demand.reduce((sum, { count }) => sum + count, 0) }
  }

  /** What to do about a claim that has failed. */
  async #recover(error: unknown, demand: Demand): Promise<void> {
    this.#mayHaveStrays ||= isUnknown(error)
    this.#most = Math.max(1, Math.floor(this.#most / 4))
    const isHandled = async (): Promise<boolean> => {
      try {
        return await this.#claimCarefully(demand)
      } catch (again) {
        this.#mayHaveStrays ||= isUnknown(again)
        return false
      }
    }
    if (wasRefused(error) && (await isHandled())) {
      this.#engine.onAnswer() // it is there
      return
    }
    this.#failures++
    if (this.#engine.breaker.fail()) emit('dibs:worker.breaker-opened', { ...this.#engine.origin, error })
    const retryInMs = Math.ceil(50 + fullJitterMs(this.#failures, 100, 5_000))
    emit('dibs:worker.failed', { ...this.#engine.origin, what: 'claim', error })
    await this.#wait(retryInMs)
  }

  /** One by one, past what cannot be claimed. False if that is not what was wrong. */
  async #claimCarefully(demand: Demand): Promise<boolean> {
    const lanes = `{${this.#lanes.map(({ id }) => id).join(',')}}`
    const leases = `{${this.#lanes.map(({ leaseMs }) => leaseMs).join(',')}}`
    let isQuarantined = false
    for (const { member, count } of demand) {
      member.reserve(count)
      try {
        const sentAt = performance.now()
        const [row] = await this.#engine.claims.send(claimCarefully, [
          member.id,
          String(Math.min(count, this.#most)),
          lanes,
          leases,
        ])
        if (row?.told == null) continue
        const { blocks, setAside, stuck }: Careful = JSON.parse(row.told)
        const { jobs } = this.#handOut(blocks, [{ member, count }], sentAt)
        this.#engine.cursors.pass(jobs)
        if (stuck.length > 0) this.#probeAt = performance.now() + STUCK_MS
        for (const id of [...setAside, ...stuck])
          emit('dibs:job.quarantined', {
            ...this.#engine.origin,
            id: String(id),
            isSetAside: setAside.includes(id),
          })
        isQuarantined ||= setAside.length + stuck.length > 0
        this.#mode = jobs.length < count && stuck.length > 0 ? 'rest' : 'places'
      } finally {
        member.reserve(-count)
      }
    }
    return isQuarantined
  }

  /** The answer to a claim was lost: whatever it has claimed is not known here, and ready again at once. */
  async #giveStraysBack(): Promise<void> {
    await this.#probing
    const members = [...this.#members]
    const held = [...this.#engine.keeper.attempts].map(({ job }) => job.id)
    // What was begun and lost is no stray: that it was lost is for its lease to tell.
    const known = new Set([...held, ...members.flatMap(({ running }) => [...running])])
    await this.#engine.claims.send(giveStraysBack, [
      textArray(members.map(({ id }) => id)),
      `{${[...known].join(',')}}`,
    ])
    this.#mayHaveStrays = false
  }
}

const isUnknown = (error: unknown): boolean =>
  error instanceof CommitOutcomeUnknownError || !(error instanceof DibsError)
