import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Dibs } from '../../src/dibs.js'
import { seededRandom } from '../../src/testing/seeded-random.js'
// @ts-expect-error: plain JavaScript, since processes of their own run it too
import * as storm from '../children/storm-jobs.mjs'
import { until } from '../until.js'
import type { CrashingServer } from './crashing-server.js'
import { createWorld, inspectLedger, type PlannedJob } from './job-ledger.js'
import { Progress } from './progress.js'
import { type StormReport, StormWorker } from './storm-worker.js'

export const faults = ['SIGKILL', 'SIGSTOP', 'terminate', 'crash'] as const
export type Fault = (typeof faults)[number]

/** How many workers there are for each strike. A stopped worker does nothing for seconds. */
const targets: Readonly<Record<Fault, number>> = { SIGKILL: 2, SIGSTOP: 2, terminate: 3, crash: 0 }

const PROCESSES = 8
const CONCURRENCY = 10
const SCHEMA = 'dibs'
const WORLD = 'world'
/** How long after a fault the work may take to reach half of its speed again. Leases must expire, and a process must start. */
const BACK_MS = storm.LEASE_MS + 6_000
const STUCK_MS = 60_000
/** When fewer jobs are left, speed says nothing any more. */
const FEW = 250

export interface JobStormOptions {
  readonly server: CrashingServer
  readonly seed: number
  readonly jobs: number
  /** Goes on until each figure has reached this. */
  readonly atLeast: number
}

export interface FaultCount {
  readonly fault: Fault
  /** Workers that held live work; of crashes, the server while jobs ran. */
  hits: number
  /** Jobs that they held then. */
  held: number
  /** The number of struck claims that another worker took over. */
  takeovers: number
  /** The number of struck claims whose late end the server refused. */
  refused: number
  /** The number of struck claims that the holder gave up by itself. */
  lost: number
  /** Sessions that were ended. */
  backends: number
  longestBackMs: number
}

export interface JobStormReport {
  readonly counts: readonly FaultCount[]
  readonly jobs: number
  readonly elapsedMs: number
  readonly longestAwayMs: number
  readonly breakersOpened: number
  /** Attempts that were lost though no fault had struck their worker: by a machine that stood still, or with the server. */
  readonly otherTakeovers: number
  readonly problems: readonly string[]
}

const keyOf = ({ id, fence }: { readonly id: string; readonly fence: number | string }) => `${id} ${fence}`

/** Eight processes work while they are killed, stopped and cut off, and while the server crashes. */
export async function jobStorm(options: JobStormOptions): Promise<JobStormReport> {
  const pool = new pg.Pool({ connectionString: options.server.url, max: 4 })
  pool.on('error', () => {})
  const dibs = await Dibs.open({ pool, schema: SCHEMA, listen: false, maintain: false })
  await createWorld(pool, SCHEMA, WORLD)
  const run = new JobStorm(options, pool, dibs)
  try {
    return await run.run()
  } finally {
    await run.end()
    await dibs.close()
    await pool.end()
  }
}

class JobStorm {
  readonly #options: JobStormOptions
  readonly #pool: pg.Pool
  readonly #dibs: Dibs
  readonly #random: () => number
  readonly #workers = new Set<StormWorker>()
  readonly #jobs: PlannedJob[] = []
  readonly #problems: string[] = []
  readonly #counts: FaultCount[] = faults.map((fault) => ({
    fault,
    hits: 0,
    held: 0,
    takeovers: 0,
    refused: 0,
    lost: 0,
    backends: 0,
    longestBackMs: 0,
  }))
  /** The claims of the workers that were struck. */
  readonly #struck = new Map<string, FaultCount>()
  readonly #progress: Progress
  #longestAwayMs = 0
  #breakersOpened = 0

  constructor(options: JobStormOptions, pool: pg.Pool, dibs: Dibs) {
    this.#options = options
    this.#pool = pool
    this.#dibs = dibs
    this.#random = seededRandom(options.seed)
    this.#progress = new Progress(async () => {
      const { rows } = await pool.query(
        `select count(*)::int as n from ${SCHEMA}.job_history where outcome = 'succeeded'`,
      )
      return rows[0].n
    })
  }

  async run(): Promise<JobStormReport> {
    const startedAt = performance.now()
    await this.#add(this.#options.jobs)
    for (let n = 0; n < PROCESSES; n++) this.#start()
    await until(() => [...this.#workers].every(({ isFit }) => isFit), 'processes to start', 120_000)
    this.#progress.start()
    await this.#progress.until((rate) => rate > 0, 1_000, STUCK_MS)
    for (let turn = 0; this.#problems.length === 0 && !this.#isEnough; turn++) {
      if (this.#progress.count > this.#jobs.length - FEW) {
        if (this.#jobs.length > 3 * this.#options.jobs) break
        await this.#add(this.#options.jobs / 4)
      }
      await this.#strikeAndRecover(this.#draw(turn))
    }
    await this.#finish()
    const otherTakeovers = await this.#countTakeovers()
    this.#problems.push(...(await inspectLedger(this.#pool, SCHEMA, WORLD, this.#jobs)))
    return {
      counts: this.#counts,
      jobs: this.#jobs.length,
      elapsedMs: performance.now() - startedAt,
      longestAwayMs: this.#longestAwayMs,
      breakersOpened: this.#breakersOpened,
      otherTakeovers,
      problems: this.#problems.slice(0, 20),
    }
  }

  async end(): Promise<void> {
    this.#progress.stop()
    await Promise.all([...this.#workers].map((worker) => worker.kill()))
  }

  /** All in one transaction, while nothing strikes: which of them are there is known. */
  async #add(count: number): Promise<void> {
    const planned = storm.planJobs(count, this.#random, this.#jobs.length) as Omit<PlannedJob, 'id'>[]
    const jobs = this.#dibs.jobs(storm.definitions)
    const added = await jobs.addMany(planned)
    for (const [n, job] of planned.entries()) this.#jobs.push({ ...job, id: `${added[n]?.id}` })
  }

  #start(): void {
    const settings = { url: this.#options.server.url, schema: SCHEMA, world: WORLD, concurrency: CONCURRENCY }
    this.#workers.add(new StormWorker(settings, (report) => this.#hear(report)))
  }

  #hear(report: StormReport): void {
    if (report.at === 'died') this.#problems.push(`a process died by itself: ${report.how}`)
    else if (report.at === 'breaker-opened') this.#breakersOpened++
    else if (report.at === 'refused' || report.at === 'lost') {
      const count = this.#struck.get(keyOf(report))
      if (count) count[report.at]++
    } else if (report.at === 'not-recorded' || report.at === 'quarantined')
      this.#problems.push(`${report.at}: job ${report.id}: ${report.error}`)
  }

  get #isEnough(): boolean {
    return this.#counts.every(({ hits }) => hits >= this.#options.atLeast)
  }

  /** Chooses a fault that has had too few hits, so that none is rare by chance. */
  #draw(turn: number): Fault {
    const wanting = this.#counts.filter(({ hits }) => hits < this.#options.atLeast)
    return (wanting[turn % wanting.length] as FaultCount).fault
  }

  #countOf(fault: Fault): FaultCount {
    return this.#counts.find((count) => count.fault === fault) as FaultCount
  }

  /** Some that work, at random. */
  #aim(number: number): StormWorker[] {
    const fit = [...this.#workers].filter(({ isFit }) => isFit)
    return Array.from(
      { length: number },
      () => fit.splice(Math.floor(this.#random() * fit.length), 1)[0],
    ).filter((worker) => worker !== undefined)
  }

  /** Whatever it does, work goes on at half the speed it had, before long. */
  async #strikeAndRecover(fault: Fault): Promise<void> {
    await sleep(this.#random() * 200)
    const before = this.#progress.rate(2_000)
    const over = await this.#strikes[fault](this.#countOf(fault), this.#aim(targets[fault]))
    const from = performance.now()
    const isBack = await this.#progress.until((rate) => rate >= before / 2, 1_000, BACK_MS)
    const count = this.#countOf(fault)
    count.longestBackMs = Math.max(count.longestBackMs, Math.round(performance.now() - from))
    if (!isBack)
      this.#problems.push(
        `${BACK_MS} ms after ${fault} there were ${this.#progress.rate(1_000).toFixed(1)} a second, and ${before.toFixed(1)} before`,
      )
    await over?.()
  }

  /** Each fault returns what to do once work goes on. */
  readonly #strikes: Readonly<
    Record<
      Fault,
      (count: FaultCount, workers: readonly StormWorker[]) => Promise<(() => Promise<void>) | undefined>
    >
  > = {
    SIGKILL: async (count, workers) => {
      for (const worker of workers) {
        this.#workers.delete(worker)
        await worker.kill()
        await this.#note(count, worker)
        this.#start()
      }
      return undefined
    },

    SIGSTOP: async (count, workers) => {
      const held: { id: string; fence: string }[] = []
      for (const worker of workers) {
        worker.isStruck = true
        worker.signal('SIGSTOP')
        held.push(...(await this.#note(count, worker)))
      }
      return async () => {
        await this.#untilOver(held)
        for (const worker of workers) {
          worker.signal('SIGCONT')
          worker.isStruck = false
        }
      }
    },

    terminate: async (count, workers) => {
      for (const worker of workers) {
        await this.#note(count, worker)
        const { rowCount } = await this.#pool.query(
          `select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1 and random() < $2`,
          [worker.name, 0.4 + 0.6 * this.#random()],
        )
        count.backends += rowCount ?? 0
      }
      return undefined
    },

    crash: async (count) => {
      const { rows } = await this.#pool.query(
        `select count(*)::int as n from ${SCHEMA}.job where state = 'running'`,
      )
      const awayMs = await this.#options.server.crash()
      this.#longestAwayMs = Math.max(this.#longestAwayMs, Math.round(awayMs))
      if (rows[0].n > 0) count.hits++
      count.held += rows[0].n
      return undefined
    },
  }

  /** The claims that a worker holds now, by the database. */
  async #note(count: FaultCount, worker: StormWorker): Promise<{ id: string; fence: string }[]> {
    const { rows } = await this.#pool.query<{ id: string; fence: string }>(
      `select id::text as id, fence::text as fence from ${SCHEMA}.job where state = 'running' and worker = $1`,
      [worker.id],
    )
    if (rows.length > 0) count.hits++
    count.held += rows.length
    for (const row of rows) this.#struck.set(keyOf(row), count)
    return rows
  }

  /** Waits until these claims have no holder. */
  async #untilOver(held: readonly { id: string; fence: string }[]): Promise<void> {
    const isOver = async (): Promise<boolean> => {
      const { rowCount } = await this.#pool.query(
        `select from ${SCHEMA}.job j join unnest($1::bigint[], $2::bigint[]) h (id, fence) using (id, fence) where j.state = 'running' limit 1`,
        [held.map(({ id }) => id), held.map(({ fence }) => fence)],
      )
      return rowCount === 0
    }
    await this.#try(() => until(isOver, 'claims of a stopped process to be taken over', STUCK_MS))
  }

  /** Until all is done, and everybody has ended in peace. */
  async #finish(): Promise<void> {
    const isDone = async (): Promise<boolean> => {
      const { rows } = await this.#pool.query(
        `select count(*)::int as n from ${SCHEMA}.job where state <> 'dead'`,
      )
      return rows[0].n === 0
    }
    await this.#try(() => until(isDone, 'all jobs to end', STUCK_MS + (1_000 * this.#left) / 10))
    this.#progress.stop()
    await this.#try(async () => {
      const ended = Promise.all([...this.#workers].map((worker) => worker.end()))
      let isEnded = false
      void ended.then(() => {
        isEnded = true
      })
      await until(() => isEnded, 'processes to end', STUCK_MS)
      this.#workers.clear()
    })
  }

  get #left(): number {
    return this.#jobs.length - this.#progress.count
  }

  async #try(fn: () => Promise<unknown>): Promise<void> {
    try {
      await fn()
    } catch (error) {
      this.#problems.push(`${error}`, ...(await this.#describeLeft()))
    }
  }

  /** Describes what blocks the work, for an error message. */
  async #describeLeft(): Promise<string[]> {
    const { rows } = await this.#pool.query<{ what: string }>(`
      (select format('job %s: %s, attempt %s, fence %s, worker %s, lease until %s', id, state, attempt, fence, worker, lease_until) as what
        from ${SCHEMA}.job where state <> 'dead' order by state = 'running' desc, id limit 10)
      union all
      (select format('session %s of %s: %s for %s: %s', pid, application_name, state, clock_timestamp() - state_change, left(query, 80))
        from pg_stat_activity where xact_start < clock_timestamp() - interval '1 second' limit 20)`)
    return rows.map(({ what }) => what)
  }

  async #countTakeovers(): Promise<number> {
    const { rows } = await this.#pool.query<{ id: string; fence: string }>(
      `select id::text as id, fence::text as fence from ${SCHEMA}.job_history where outcome = 'lost'`,
    )
    let others = 0
    for (const row of rows) {
      const count = this.#struck.get(keyOf(row))
      if (count) count.takeovers++
      else others++
    }
    return others
  }
}
