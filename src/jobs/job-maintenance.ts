import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import { wasRefused } from '../postgres/fault.js'
import type { TextValue } from '../postgres/text-values.js'
import type { EngineContext } from './engine-context.js'
import { expireJobs, maintainHistory, promoteJobs, recoverJobs } from './job-statements.js'
import { DUE_TOPIC } from './job-topics.js'
import { RepeatedTask } from './repeated-task.js'

/** The most rows in one statement, so that no statement blocks others for long. */
const BATCH = 1_000
/** The pause between two runs of a task, plus or minus a quarter. */
const PAUSE_MS = 1_000
const HISTORY_PAUSE_MS = 3_600_000
/** A task may take a twentieth of the time: while a transaction stays open for long, each run reads many dead rows. */
const COOLDOWN_FACTOR = 20
const MAX_COOLDOWN_MS = 5_000
/** The pause after a failure. */
const FAILED_MS = 1_000
/** While the database is unavailable, and for `GRACE_MS` after, no job is recovered: workers first record the attempts that have ended meanwhile. */
const UNAVAILABLE_MS = 100
const GRACE_MS = 3_000
/** A history partition is dropped only if its lock is free within this time, because others queue behind the wait. The next run tries again. */
const DROP_MS = 100
const ANSWER_MS = 10_000

type TaskName = 'promotion' | 'recovery' | 'expiry' | 'history'

interface Recovered {
  readonly id: number
  readonly queue: string
  readonly name: string
  readonly worker: string
  readonly attempt: number
  readonly fence: number
  readonly state: 'ready' | 'dead' | 'canceled'
}

const jittered = (ms: number): number => ms * (0.75 + Math.random() / 2)

/** The tasks that every process with a worker runs for the jobs of all processes. */
export class JobMaintenance {
  readonly #engine: EngineContext
  readonly #keepDays = new Set<number>()
  #tasks: Readonly<Record<TaskName, RepeatedTask>> | undefined
  #unsubscribe: (() => void) | undefined
  #isUnavailable = false
  #recoverAt = 0

  constructor(engine: EngineContext) {
    this.#engine = engine
  }

  /** Tells the maintenance for which numbers of days the jobs of this process are kept. */
  keepDays(days: Iterable<number>): void {
    for (const one of days) if (one > 0) this.#keepDays.add(one)
    this.#tasks?.history.runIn(0)
  }

  /** Runs the promotion in `ms`, because a job is due then. */
  promoteIn(ms: number): void {
    this.#tasks?.promotion.runIn(ms)
  }

  start(): void {
    const tasks = {
      promotion: this.#task('promotion', () => this.#promote()),
      recovery: this.#task('recovery', () => this.#recover()),
      expiry: this.#task('expiry', () => this.#expire()),
      history: this.#task('history', () => this.#maintainHistory()),
    }
    this.#tasks = tasks
    this.#unsubscribe = this.#engine.wakeups.subscribe(DUE_TOPIC, () => tasks.promotion.runIn(0))
    tasks.history.runIn(0)
    tasks.promotion.runIn(0)
    tasks.recovery.runIn(Math.random() * PAUSE_MS)
    tasks.expiry.runIn(Math.random() * PAUSE_MS)
  }

  stop(): void {
    this.#isUnavailable = false
    this.#unsubscribe?.()
    for (const task of Object.values(this.#tasks ?? {})) task.stop()
    this.#tasks = undefined
  }

  /** @param run resolves to the delay before the next run; 0 if there is more to do */
  #task(name: TaskName, run: () => Promise<number>): RepeatedTask {
    const task = new RepeatedTask(async () => {
      const graceMs = name === 'recovery' ? this.#graceMs() : 0
      if (graceMs > 0) return graceMs
      const startedAt = performance.now()
      try {
        const nextMs = await run()
        this.#engine.onAnswer()
        if (this.#isUnavailable && name !== 'history') {
          this.#isUnavailable = false
          this.#recoverAt = performance.now() + GRACE_MS
        }
        if (nextMs <= 0) return 0
        return Math.max(nextMs, Math.min(MAX_COOLDOWN_MS, COOLDOWN_FACTOR * (performance.now() - startedAt)))
      } catch (error) {
        // The last worker has stopped, which closed the connection of this statement.
        if (this.#tasks?.[name] !== task) return FAILED_MS
        emit('dibs:worker.failed', { ...this.#engine.origin, what: name, error })
        // History has a connection of its own, which the server may refuse while the others work.
        this.#isUnavailable ||= name !== 'history' && !wasRefused(error)
        return FAILED_MS
      }
    })
    return task
  }

  /** The time that recovery still waits for workers that have outcomes to record. */
  #graceMs(): number {
    if (this.#isUnavailable || this.#engine.completer.isBehind) return UNAVAILABLE_MS // guard: job.recover-after-outage
    return this.#recoverAt - performance.now()
  }

  /** Makes jobs ready that are due. */
  async #promote(): Promise<number> {
    const [row] = await this.#engine.maintenance.send(promoteJobs, [String(BATCH)])
    const result: { count: number; queues: string[]; dueInMs: number | null } = JSON.parse(`${row?.result}`)
    this.#engine.notifyQueues(result.queues)
    if (result.count === BATCH) return 0
    return Math.min(result.dueInMs ?? PAUSE_MS, jittered(PAUSE_MS))
  }

  /** Takes jobs from workers whose leases have expired. */
  async #recover(): Promise<number> {
    const ended = this.#engine.heartbeat.takeEndedClaims(BATCH)
    const [row] = await this.#engine.maintenance.send(recoverJobs, [String(BATCH), `{${ended.join(',')}}`])
    const { lost, isMore }: { lost: readonly Recovered[]; isMore: boolean } = JSON.parse(`${row?.result}`)
    for (const { id, ...rest } of lost)
      emit('dibs:job.recovered', { ...this.#engine.origin, ...rest, id: String(id) })
    this.#engine.notifyQueues(
      new Set(lost.filter(({ state }) => state === 'ready').map(({ queue }) => queue)),
    )
    return isMore ? 0 : jittered(PAUSE_MS)
  }

  /** Ends jobs that have expired. */
  async #expire(): Promise<number> {
    const [row] = await this.#engine.maintenance.send(expireJobs, [String(BATCH)])
    return Number(row?.count) === BATCH ? 0 : jittered(PAUSE_MS)
  }

  /** Creates the partitions of the history that are needed soon, and drops old ones. The statement may wait for a table lock, so heartbeats use another connection. */
  async #maintainHistory(): Promise<number> {
    await this.#engine.scans.send(maintainHistory, historyValues(this.#keepDays))
    return HISTORY_PAUSE_MS
  }
}

const historyValues = (keepDays: Iterable<number>): TextValue[] => [
  `{${[...keepDays].join(',')}}`,
  String(DROP_MS),
]

/** Drops the history partitions whose day has come. Returns their number. */
export async function forgetJobDays(database: Database): Promise<number> {
  const [row] = await database.send(maintainHistory, historyValues([]), { deadlineMs: ANSWER_MS })
  return Number(row?.count)
}
