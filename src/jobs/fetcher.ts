import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import { emit } from '../postgres/events.js'
import { wasRefused } from '../postgres/fault.js'
import { BackgroundScan } from './background-scan.js'
import { ClaimFailures } from './claim-failures.js'
import type { EngineContext } from './engine-context.js'
import { queueTopic } from './job-topics.js'
import { type Claimant, type Demand, type Lane, LaneClaimer } from './lane-claimer.js'
import { ScanPacing } from './scan-pacing.js'

/** The pause of full scans after one met a job that can be neither claimed nor quarantined. */
const STUCK_MS = 5_000

/**
 * Claims jobs of some lanes for all workers of this instance that run them, and no more than there is room for.
 *
 * While there is enough to do, each claim continues behind the last one, at the cursors. A full scan finds all other jobs: retries, and priorities without
 * a cursor. A scan runs before the fetcher becomes idle, and now and then beside the claims. An idle fetcher waits for a notification, or for the next poll.
 */
export class Fetcher {
  readonly #engine: EngineContext
  readonly #lanes: readonly Lane[]
  readonly #claimer: LaneClaimer
  readonly #pacing: ScanPacing
  readonly #background: BackgroundScan
  readonly #failures = new ClaimFailures()
  readonly #claimants = new Set<Claimant>()
  readonly #unsubscribe: (() => void)[] = []
  #pollMs = Number.POSITIVE_INFINITY
  #isRunning = false
  /** The next action when there is room: claim at the cursors, run a full scan, or wait. */
  #mode: 'cursors' | 'scan' | 'idle' = 'scan'
  #isNotified = false
  #wake: (() => void) | undefined

  constructor(engine: EngineContext, lanes: readonly Lane[]) {
    this.#engine = engine
    this.#lanes = lanes
    this.#claimer = new LaneClaimer(engine, lanes)
    this.#pacing = new ScanPacing(engine.scans)
    this.#background = new BackgroundScan({
      onFound: () => this.#resume('cursors'),
      onOutdated: () => this.#resume('scan'),
      onFailed: (error) => this.#onScanFailed(error),
    })
  }

  join(claimant: Claimant, pollMs: number): void {
    this.#claimants.add(claimant)
    this.#pollMs = Math.min(this.#pollMs, pollMs)
    this.#mode = 'scan'
    if (this.#isRunning) {
      this.wake()
      return
    }
    this.#isRunning = true
    for (const queue of new Set(this.#lanes.map(({ queue }) => queue)))
      this.#unsubscribe.push(this.#engine.wakeups.subscribe(queueTopic(queue), () => this.#onNotified()))
    void this.#run()
  }

  leave(claimant: Claimant): void {
    this.#claimants.delete(claimant)
    if (this.#claimants.size > 0) return
    this.#pollMs = Number.POSITIVE_INFINITY
    this.wake()
  }

  /** Ends the current wait: a worker has room, or the database is available again. */
  wake(): void {
    this.#wake?.()
  }

  #onNotified(): void {
    this.#isNotified = true
    this.#background.onNotified()
    this.wake()
  }

  async #run(): Promise<void> {
    // When the owner of the pool has ended it, no handler can run, although claims use other connections.
    while (this.#claimants.size > 0 && !this.#engine.isClosed && !this.#engine.database.pool.ended) {
      const demand = this.#demand()
      if (demand.length === 0) await this.#wait(Number.POSITIVE_INFINITY)
      else if (this.#mode === 'idle' && !this.#isNotified) await this.#waitForWork()
      else await this.#fetch(demand)
    }
    for (const stop of this.#unsubscribe.splice(0)) stop()
    this.#pacing.keepConnection(false)
    this.#isRunning = false
  }

  #demand(): Demand {
    const demand: { claimant: Claimant; count: number }[] = []
    let left = this.#failures.maxBatch
    for (const claimant of this.#claimants) {
      const count = Math.min(left, claimant.room)
      if (count <= 0) continue
      demand.push({ claimant, count })
      left -= count
    }
    return demand
  }

  async #wait(ms: number): Promise<void> {
    let timer: NodeJS.Timeout | undefined
    await new Promise<void>((resolve) => {
      this.#wake = resolve
      if (ms < Number.POSITIVE_INFINITY) timer = setTimeout(resolve, Math.min(ms, MAX_TIMER_MS))
    })
    clearTimeout(timer)
    this.#wake = undefined
  }

  /** Waits for a notification, or for the next poll. A worker that has room ends the wait as well, but that is no reason to poll. */
  async #waitForWork(): Promise<void> {
    const until = performance.now() + this.#pollMs * (0.75 + Math.random() / 2)
    while (!this.#isNotified && this.#claimants.size > 0 && this.#mode === 'idle') {
      const leftMs = until - performance.now()
      if (leftMs <= 0) break
      await this.#wait(leftMs)
    }
    if (this.#mode === 'idle') this.#mode = 'scan'
  }

  async #fetch(demand: Demand): Promise<void> {
    const { dueInMs } = this.#pacing
    const isScanDue = dueInMs <= 0
    if (this.#mode === 'idle') this.#mode = 'scan'
    if (this.#mode === 'scan' && !isScanDue && !this.#isNotified) return await this.#wait(dueInMs)
    const waitMs = this.#engine.breaker.enter()
    if (waitMs > 0) return await this.#wait(waitMs)
    this.#isNotified = false
    try {
      if (this.#failures.mayHaveOrphans) await this.#releaseOrphans()
      // guard: job.claim-beside-scan
      if (this.#mode === 'scan' && isScanDue && !this.#scansBeside(demand)) {
        const isMore = await this.#scan(demand, this.#engine.claims)
        this.#mode = isMore ? 'cursors' : 'idle'
      } else {
        const isFull = await this.#claim(isScanDue ? this.#shareWithScan(demand) : demand)
        const hasUnclaimedWork = this.#background.takeUnclaimedWork()
        if (isFull || hasUnclaimedWork) this.#mode = 'cursors'
        else this.#mode = this.#background.isRunning && this.#scansBeside(demand) ? 'idle' : 'scan'
      }
      this.#failures.onAnswer()
      this.#engine.onAnswer()
    } catch (error) {
      await this.#recover(error, demand)
    }
  }

  /** True if claims and heartbeats must not wait for the next full scan. With room for one job there is nothing to share. */
  #scansBeside([first]: Demand): boolean {
    return this.#pacing.isSlow && first !== undefined && first.count > 1
  }

  /** Starts a full scan beside the claims, and leaves a part of the room to it. Returns the rest. */
  #shareWithScan(demand: Demand): Demand {
    const [first, ...rest] = demand
    if (this.#background.isRunning || !first) return demand
    const share = Math.max(1, Math.floor(first.count / 2))
    const connection = this.#pacing.isSlow ? this.#engine.scans : this.#engine.maintenance // guard: job.heartbeat-connection
    this.#background.start(this.#scan([{ claimant: first.claimant, count: share }], connection))
    const left = first.count - share
    return left > 0 ? [{ claimant: first.claimant, count: left }, ...rest] : rest
  }

  #onScanFailed(error: unknown): void {
    this.#failures.noteError(error)
    this.#pacing.onFailed()
    // The next scan does not run beside the claims, so its error counts as that of a claim.
    this.#resume('scan')
  }

  /** Ends the wait of an idle fetcher. */
  #resume(mode: 'cursors' | 'scan'): void {
    if (this.#mode !== 'idle') return
    this.#mode = mode
    this.#background.takeUnclaimedWork()
    this.wake()
  }

  /** Resolves true if there may be more jobs at the cursors. */
  async #claim(demand: Demand): Promise<boolean> {
    if (demand.length === 0) return await this.#background.result()
    const claimed = await this.#claimer.claimAtCursors(demand)
    this.#pacing.onClaimed(claimed)
    return claimed.isFull
  }

  /** Resolves true if there are jobs that the scan has not claimed. */
  async #scan(demand: Demand, connection: EngineContext['claims']): Promise<boolean> {
    const scanned = await this.#claimer.scan(demand, connection)
    this.#pacing.onScanned(scanned, this.#engine.cursors.rewind(scanned.tops))
    // The last worker may have left meanwhile.
    this.#pacing.keepConnection(this.#pacing.isSlow && this.#isRunning)
    return scanned.tops.length > 0
  }

  async #recover(error: unknown, demand: Demand): Promise<void> {
    this.#failures.noteError(error)
    this.#failures.reduceBatch()
    if (wasRefused(error) && (await this.#claimPastRefused(demand))) {
      this.#engine.onAnswer()
      return
    }
    const pauseMs = this.#failures.countFailure()
    if (this.#engine.breaker.fail()) emit('dibs:worker.breaker-opened', { ...this.#engine.origin, error })
    emit('dibs:worker.failed', { ...this.#engine.origin, what: 'claim', error })
    await this.#wait(pauseMs)
  }

  /** Claims one job at a time, and quarantines each that the server refuses. Resolves false if the server has refused none. */
  async #claimPastRefused(demand: Demand): Promise<boolean> {
    let hasFoundRefused = false
    try {
      for (const { claimant, count } of demand) {
        const result = await this.#claimer.claimOneByOne(claimant, Math.min(count, this.#failures.maxBatch))
        if (!result) continue
        const { claimed, quarantined, stuck } = result
        if (stuck > 0) this.#pacing.postpone(STUCK_MS)
        hasFoundRefused ||= quarantined + stuck > 0
        this.#mode = claimed < count && stuck > 0 ? 'idle' : 'cursors'
      }
      return hasFoundRefused
    } catch (error) {
      this.#failures.noteError(error)
      return false
    }
  }

  async #releaseOrphans(): Promise<void> {
    await this.#background.result()
    await this.#claimer.releaseOrphans([...this.#claimants])
    this.#failures.onOrphansReleased()
  }
}
