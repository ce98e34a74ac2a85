import { emit } from '../postgres/events.js'
import { wasRefused } from '../postgres/fault.js'
import { backoffMs, type RetryPolicy, retry } from '../postgres/retry.js'
import { sleep } from '../postgres/sleep.js'
import type { Attempt } from './attempt.js'
import type { EngineContext } from './engine-context.js'
import { completeJob, completeJobs, settleJob, settleJobs } from './job-statements.js'
import type { Settlement } from './settlement.js'
import { updateJobRow } from './update-job-row.js'

/** The most outcomes in one statement. */
const MAX_BATCH = 1_000
/** The most characters of results in one statement: the server reads them as one string. */
const MAX_BATCH_CHARS = 4_000_000
/** Jobs whose outcome is not recorded yet hold no slot, up to this many. */
const MAX_UNANSWERED = 2_000
/** How long an outcome that is sent alone waits for the row, each time. */
const WAIT_MS = 1_000
/** The number of batches that an outcome with a locked row joins before it is sent alone. */
const MAX_TIMES_LOCKED = 10
const LOCKED_DELAY_MS = 5
/** The delays after statements without an answer. */
const BACKOFF = { baseMs: 50, maxMs: 2_000 }

/**
 * The database's answer to an outcome. `done`: recorded. `canceled`: recorded as canceled. `succeeded`: recorded before, by a commit whose answer was lost.
 * `lost`: the claim was lost before, or the engine was closed. `not-recorded`: the server cannot store the outcome.
 */
export type RecordResult = 'done' | 'canceled' | 'succeeded' | 'lost' | 'not-recorded'

type OnRecorded = (outcome: RecordResult, error?: unknown) => void

interface PendingOutcome {
  readonly attempt: Attempt
  /** Undefined: the job has succeeded. */
  readonly settlement: Settlement | undefined
  /** As JSON. Null: no result. */
  readonly result: string | null
  readonly onRecorded: OnRecorded
  /** The number of times that another session had locked the row. */
  timesLocked: number
}

/** The answer to a batch, by the ids of jobs. An id in no set was lost, or recorded before. */
interface BatchResult {
  readonly done: ReadonlySet<number>
  /** Recorded as canceled. */
  readonly canceled?: ReadonlySet<number>
  readonly locked: ReadonlySet<number>
}

/**
 * Records the outcomes of attempts. Outcomes that arrive while a statement is in flight share the next one. Each outcome is sent until the database
 * answers. A repetition does no harm, because each outcome names its fence.
 */
export class Completer {
  readonly #engine: EngineContext
  readonly #retryPolicy: RetryPolicy
  #pending: PendingOutcome[] = []
  #isRunning = false
  /** The number of statements without an answer since the last answer. */
  #failures = 0
  #unanswered = 0
  #capacity: Promise<void> | undefined
  #onCapacity: () => void = () => {}

  constructor(engine: EngineContext) {
    this.#engine = engine
    this.#retryPolicy = {
      isRetryable: (error) => !wasRefused(error) && !engine.isClosed,
      ...BACKOFF,
      onRetry: (error) => this.#onUnanswered(error),
    }
  }

  /** True while outcomes are unrecorded because the database was unavailable. */
  get isBehind(): boolean {
    return this.#failures > 0 && this.#unanswered > 0
  }

  /** Resolves when more outcomes may be added. Undefined: at once. All callers share one promise. */
  get whenCapacity(): Promise<void> | undefined {
    if (this.#unanswered > MAX_UNANSWERED)
      this.#capacity ??= new Promise((resolve) => {
        this.#onCapacity = () => {
          this.#capacity = undefined
          resolve()
        }
      })
    return this.#capacity
  }

  /**
   * @param settlement undefined if the job has succeeded
   * @param result as JSON; null for none
   */
  record(
    attempt: Attempt,
    settlement: Settlement | undefined,
    result: string | null,
    onRecorded: OnRecorded,
  ): void {
    this.#unanswered++
    this.#pending.push({ attempt, settlement, result, onRecorded, timesLocked: 0 })
    if (!this.#isRunning) void this.#run()
  }

  #finish({ onRecorded }: PendingOutcome, outcome: RecordResult, error?: unknown): void {
    if (--this.#unanswered <= MAX_UNANSWERED) this.#onCapacity()
    onRecorded(outcome, error)
  }

  async #run(): Promise<void> {
    this.#isRunning = true
    await new Promise((resolve) => setImmediate(resolve)) // collects the outcomes of this turn of the event loop
    while (this.#pending.length > 0) {
      // Another session has locked all these rows, and holds them only for a moment.
      if (this.#pending.every(({ timesLocked }) => timesLocked > 0)) await sleep(LOCKED_DELAY_MS)
      const batch = this.#takeBatch()
      const succeeded = batch.filter(({ settlement }) => settlement === undefined)
      const others = batch.filter(({ settlement }) => settlement !== undefined)
      if (succeeded.length > 0) await this.#send(succeeded, (part) => this.#complete(part))
      if (others.length > 0) await this.#send(others, (part) => this.#settle(part))
    }
    this.#isRunning = false
  }

  /** Takes at most one outcome of each job, because answers name jobs: a lost attempt may end beside the attempt that took over. */
  #takeBatch(): PendingOutcome[] {
    const batch = new Map<number, PendingOutcome>()
    const rest: PendingOutcome[] = []
    let chars = 0
    for (const one of this.#pending) {
      const { id } = one.attempt.job
      chars += one.result?.length ?? 0
      const hasRoom = batch.size === 0 || (batch.size < MAX_BATCH && chars <= MAX_BATCH_CHARS)
      if (hasRoom && !batch.has(id)) batch.set(id, one)
      else rest.push(one)
    }
    this.#pending = rest
    return [...batch.values()].sort((one, other) => one.attempt.job.id - other.attempt.job.id)
  }

  /** Sends a batch, and then sends each outcome alone that the batch has not recorded. Never rejects. */
  async #send(
    batch: readonly PendingOutcome[],
    statement: (part: readonly PendingOutcome[]) => Promise<BatchResult | undefined>,
  ): Promise<void> {
    try {
      const result = await this.#answered(() => statement(batch))
      for (const one of batch) {
        const { id } = one.attempt.job
        if (result === undefined || result.done.has(id))
          this.#finish(one, result?.canceled?.has(id) ? 'canceled' : 'done')
        else if (result.locked.has(id) && ++one.timesLocked < MAX_TIMES_LOCKED) this.#pending.push(one)
        else void this.#sendAlone(one)
      }
    } catch (error) {
      if (wasRefused(error)) {
        // The server refuses one of the outcomes. Halves of the batch find it, and none of them waits for a row.
        const half = Math.ceil(batch.length / 2)
        if (half === batch.length) for (const one of batch) void this.#sendAlone(one)
        else for (const part of [batch.slice(0, half), batch.slice(half)]) await this.#send(part, statement)
      } else if (this.#engine.isClosed) for (const one of batch) this.#finish(one, 'lost')
      else {
        this.#onUnanswered(error)
        await sleep(backoffMs(this.#failures, BACKOFF.baseMs, BACKOFF.maxMs))
        // Other outcomes do not wait until this batch has an answer: it may be the only one that has to wait for something.
        this.#pending.unshift(...batch)
      }
    }
  }

  /** Sends one outcome, and waits for its row. Never rejects. */
  async #sendAlone(one: PendingOutcome): Promise<void> {
    try {
      let state: RecordResult | 'locked' = 'locked'
      while (state === 'locked' && !this.#engine.isClosed)
        state = await retry(() => this.#answered(() => this.#recordAlone(one)), this.#retryPolicy)
      this.#finish(one, state === 'locked' ? 'lost' : state)
    } catch (error) {
      if (!wasRefused(error)) return this.#finish(one, 'lost')
      const { job, definition } = one.attempt
      emit('dibs:job.not-recorded', {
        ...this.#engine.origin,
        ...{ id: String(job.id), name: definition.name, attempt: job.attempt, fence: job.fence, error },
      })
      this.#finish(one, 'not-recorded', error)
    }
  }

  async #answered<T>(send: () => Promise<T>): Promise<T> {
    const answer = await send()
    this.#failures = 0
    this.#engine.onAnswer()
    return answer
  }

  #onUnanswered(error: unknown): void {
    this.#failures++
    emit('dibs:worker.failed', { ...this.#engine.origin, what: 'outcomes', error })
  }

  async #complete(batch: readonly PendingOutcome[]): Promise<BatchResult | undefined> {
    const keepDays = new Set(batch.map(({ attempt }) => attempt.job.keepDays))
    keepDays.delete(0)
    const hasResults = batch.some(({ result }) => result !== null)
    const [row] = await this.#engine.outcomes.send(completeJobs, [
      `{${batch.map(({ attempt }) => attempt.job.id).join(',')}}`,
      `{${batch.map(({ attempt }) => attempt.job.fence).join(',')}}`,
      hasResults ? `[${batch.map(({ result }) => result ?? 'null').join(',')}]` : null,
      `{${[...keepDays].join(',')}}`,
    ])
    if (row?.result == null) return undefined
    const { done, locked }: { done: number[]; locked: number[] } = JSON.parse(row.result)
    return { done: new Set(done), locked: new Set(locked) }
  }

  async #settle(batch: readonly PendingOutcome[]): Promise<BatchResult> {
    const [row] = await this.#engine.outcomes.send(settleJobs, [`[${batch.map(settlementJson).join(',')}]`])
    const result: readonly { id: number; state: string }[] = JSON.parse(`${row?.result}`)
    const idsWhere = (isWanted: (state: string) => boolean) =>
      new Set(result.flatMap(({ id, state }) => (isWanted(state) ? [id] : [])))
    return {
      done: idsWhere((state) => state !== 'locked'),
      canceled: idsWhere((state) => state === 'canceled'),
      locked: idsWhere((state) => state === 'locked'),
    }
  }

  async #recordAlone(one: PendingOutcome): Promise<RecordResult | 'locked'> {
    const { id, fence, keepDays } = one.attempt.job
    const values = (waitMs: number) =>
      one.settlement
        ? [settlementJson(one), String(waitMs)]
        : [String(id), String(fence), one.result, String(keepDays), String(waitMs)]
    const statement = one.settlement ? settleJob : completeJob
    const row = await updateJobRow(this.#engine, statement, values, WAIT_MS)
    return row?.state as RecordResult | 'locked'
  }
}

function settlementJson({ attempt, settlement }: PendingOutcome): string {
  const { id, fence } = attempt.job
  const { to, delayMs, error } = settlement as Settlement
  return `{"id":${id},"fence":${fence},"to":"${to}","delayMs":${delayMs},"error":${error}}`
}
