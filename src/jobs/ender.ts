import { fullJitterMs } from '../postgres/backoff.js'
import { emit } from '../postgres/events.js'
import { sleep } from '../postgres/sleep.js'
import { wasRefused } from './add-jobs.js'
import { askRow } from './ask-row.js'
import type { Attempt } from './attempt.js'
import type { EngineParts } from './engine-parts.js'
import { completeJob, completeJobs, settleJob, settleJobs } from './job-statements.js'
import type { Settlement } from './outcome.js'

/** How many go with one statement. */
const MOST = 1_000
/** And how long their results may be together: the server reads them as one text. */
const MOST_CHARS = 4_000_000
/** Jobs whose end is not recorded yet hold no slot, up to so many: then the next has to wait. */
const MOST_WAITING = 2_000
/** How long one that was passed over waits for whoever has its row, each time. */
const WAIT_MS = 1_000
/** How often a row that others have is tried with the next batch, before it is waited for by itself. */
const MOST_PASSED_OVER = 10
const PAUSE_MS = 5

/** What came of it: recorded; recorded as canceled, whatever it was to become; done before, by a transaction of which nobody knew whether it was committed; refused, since the claim was lost before; or the server would not have it. */
export type EndState = 'done' | 'canceled' | 'succeeded' | 'lost' | 'refused'

interface Ending {
  readonly attempt: Attempt
  /** Undefined: it has succeeded. */
  readonly settlement: Settlement | undefined
  /** As JSON; null: nothing. */
  readonly result: string | null
  readonly onEnd: (state: EndState) => void
  /** How often others had its row. */
  passedOver: number
}

/** What a batch has come to, by the ids of jobs. What is neither has been lost, or was recorded before. */
interface Told {
  readonly done: ReadonlySet<number>
  /** Those of them that somebody has canceled. */
  readonly canceled?: ReadonlySet<number>
  /** Others have their rows just now. */
  readonly locked: ReadonlySet<number>
}

/**
 * Records how attempts have ended: all that gather while a statement is on its way go with the next. Each is sent until it is answered, which may be repeated, since it
 * names its fence.
 */
export class Ender {
  readonly #engine: EngineParts
  #waiting: Ending[] = []
  #isRunning = false
  #failures = 0
  #size = 0
  #room: Promise<void> | undefined
  #onRoom: () => void = () => {}

  constructor(engine: EngineParts) {
    this.#engine = engine
  }

  /** The database was away when it was to hear of some, and does not know of them yet. */
  get isBehind(): boolean {
    return this.#failures > 0 && this.#size > 0
  }

  /** How many are not answered yet. */
  get size(): number {
    return this.#size
  }

  /** Resolves when there is room for more; undefined: there is. Whoever waits does so for one promise, however many they are. */
  get room(): Promise<void> | undefined {
    if (this.#size > MOST_WAITING)
      this.#room ??= new Promise((resolve) => {
        this.#onRoom = () => {
          this.#room = undefined
          resolve()
        }
      })
    return this.#room
  }

  /** `settlement`: undefined, it has succeeded. `result`: as JSON; null, nothing. */
  end(
    attempt: Attempt,
    settlement: Settlement | undefined,
    result: string | null,
    onEnd: (state: EndState) => void,
  ): void {
    attempt.isEnding = true
    this.#size++
    this.#waiting.push({ attempt, settlement, result, onEnd, passedOver: 0 })
    if (!this.#isRunning) void this.#run()
  }

  #tell({ attempt, onEnd }: Ending, state: EndState): void {
    if (--this.#size <= MOST_WAITING) this.#onRoom()
    attempt.state = state === 'lost' || state === 'refused' ? 'lost' : 'ended'
    onEnd(state)
  }

  async #run(): Promise<void> {
    this.#isRunning = true
    await new Promise((resolve) => setImmediate(resolve)) // what ends in this turn of the loop goes together
    while (this.#waiting.length > 0) {
      // Whoever has their rows is about to see that they are not what it wants.
      if (this.#waiting.every(({ passedOver }) => passedOver > 0)) await sleep(PAUSE_MS)
      const batch = this.#next()
      const done = batch.filter(({ settlement }) => settlement === undefined)
      const rest = batch.filter(({ settlement }) => settlement !== undefined)
      if (done.length > 0) await this.#send(done, (part) => this.#complete(part))
      if (rest.length > 0) await this.#send(rest, (part) => this.#settle(part))
    }
    this.#isRunning = false
  }

  /** One of each job, in their order, since answers name jobs: an attempt that was lost may end beside the one that has taken over. */
  #next(): Ending[] {
    const batch = new Map<number, Ending>()
    const rest: Ending[] = []
    let chars = 0
    for (const ending of this.#waiting) {
      const { id } = ending.attempt.job
      chars += ending.result?.length ?? 0
      const hasRoom = batch.size === 0 || (batch.size < MOST && chars <= MOST_CHARS)
      if (hasRoom && !batch.has(id)) batch.set(id, ending)
      else rest.push(ending)
    }
    this.#waiting = rest
    return [...batch.values()].sort((one, other) => one.attempt.job.id - other.attempt.job.id)
  }

  /** Those of a batch that the statement has recorded are told so; the others go by themselves. */
  async #send(
    batch: readonly Ending[],
    statement: (part: readonly Ending[]) => Promise<Told | undefined>,
  ): Promise<void> {
    try {
      const told = await statement(batch)
      this.#answered()
      for (const ending of batch) {
        const { id } = ending.attempt.job
        if (told === undefined || told.done.has(id))
          this.#tell(ending, told?.canceled?.has(id) ? 'canceled' : 'done')
        else if (told.locked.has(id) && ++ending.passedOver < MOST_PASSED_OVER) this.#waiting.push(ending)
        else void this.#sendAlone(ending)
      }
    } catch (error) {
      if (wasRefused(error)) {
        // One of them is to blame: looked for by halves, which wait for nobody either.
        const half = Math.ceil(batch.length / 2)
        if (half === batch.length) for (const ending of batch) void this.#sendAlone(ending)
        else for (const part of [batch.slice(0, half), batch.slice(half)]) await this.#send(part, statement)
        return
      }
      if (this.#engine.isOver) for (const ending of batch) this.#tell(ending, 'lost')
      else {
        await this.#pause(error)
        this.#waiting.unshift(...batch)
      }
    }
  }

  async #complete(batch: readonly Ending[]): Promise<Told | undefined> {
    const keepDays = new Set(batch.map(({ attempt }) => attempt.job.keepDays))
    keepDays.delete(0)
    const hasResults = batch.some(({ result }) => result !== null)
    const [row] = await this.#engine.ends.send(completeJobs, [
      `{${batch.map(({ attempt }) => attempt.job.id).join(',')}}`,
      `{${batch.map(({ attempt }) => attempt.job.fence).join(',')}}`,
      hasResults ? `[${batch.map(({ result }) => result ?? 'null').join(',')}]` : null,
      `{${[...keepDays].join(',')}}`,
    ])
    if (row?.told == null) return undefined
    const { done, locked }: { done: number[]; locked: number[] } = JSON.parse(row.told)
    return { done: new Set(done), locked: new Set(locked) }
  }

  async #settle(batch: readonly Ending[]): Promise<Told> {
    const [row] = await this.#engine.ends.send(settleJobs, [`[${batch.map(itemOf).join(',')}]`])
    const told: readonly { id: number; state: string }[] = JSON.parse(`${row?.told}`)
    const of = (isWanted: (state: string) => boolean) =>
      new Set(told.flatMap(({ id, state }) => (isWanted(state) ? [id] : [])))
    return {
      done: of((state) => state !== 'locked'),
      canceled: of((state) => state === 'canceled'),
      locked: of((state) => state === 'locked'),
    }
  }

  /** Never fails: tells whoever waits for it. */
  async #sendAlone(ending: Ending): Promise<void> {
    while (!this.#engine.isOver) {
      try {
        const state = await this.#ask(ending)
        this.#answered()
        if (state !== 'locked') return this.#tell(ending, state)
      } catch (error) {
        if (wasRefused(error)) {
          this.#refused(ending, error)
          return this.#tell(ending, 'refused')
        }
        await this.#pause(error)
      }
    }
    this.#tell(ending, 'lost')
  }

  async #ask({ attempt, settlement, result }: Ending): Promise<EndState | 'locked'> {
    const { id, fence, keepDays } = attempt.job
    const values = (waitMs: number) =>
      settlement
        ? [itemOf({ attempt, settlement }), String(waitMs)]
        : [String(id), String(fence), result, String(keepDays), String(waitMs)]
    const row = await askRow(this.#engine, settlement ? settleJob : completeJob, values, WAIT_MS)
    return row?.state as EndState | 'locked'
  }

  #answered(): void {
    this.#failures = 0
    this.#engine.onAnswer()
  }

  async #pause(error: unknown): Promise<void> {
    this.#failures++
    emit('dibs:worker.failed', { ...this.#engine.origin, what: 'outcomes', error })
    await sleep(fullJitterMs(this.#failures, 50, 2_000))
  }

  #refused({ attempt }: Ending, error: unknown): void {
    attempt.refusal = error
    const { job, definition } = attempt
    emit('dibs:job.not-recorded', {
      ...this.#engine.origin,
      ...{ id: String(job.id), name: definition.name, attempt: job.attempt, fence: job.fence, error },
    })
  }
}

function itemOf({ attempt, settlement }: Pick<Ending, 'attempt' | 'settlement'>): string {
  const { id, fence } = attempt.job
  const { to = 'retry', delayMs = 0, error = null } = settlement ?? {}
  return `{"id":${id},"fence":${fence},"to":"${to}","delayMs":${delayMs},"error":${error}}`
}
