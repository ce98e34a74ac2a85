import { BusyError, CommitOutcomeUnknownError, DatabaseError, JobTimeoutError } from '../errors.js'
import { toOutcome } from '../postgres/json.js'
import { checkOutcome, parseStored } from '../postgres/standard-schema.js'
import { repeatTransaction } from '../postgres/transaction.js'
import type { FramedTransaction } from '../postgres/transaction-handle.js'
import { unlessAborted } from '../postgres/with-timeout.js'
import type { Attempt } from './attempt.js'
import type { Engine } from './engine.js'
import type { AnyHandler } from './handlers.js'
import { AttemptContext } from './job-context.js'
import { completeJobWith } from './job-statements.js'

/** How a handler ended. `completed`: in its own transaction, which is committed; `late`: that was refused, since another has the job. */
export type Run =
  | { readonly state: 'returned'; readonly result: string | null }
  | { readonly state: 'completed' }
  | { readonly state: 'late' }
  /** The answer to its COMMIT was lost: the row itself will tell. */
  | { readonly state: 'unknown' }
  | { readonly state: 'threw'; readonly error: unknown }
  /** No transaction could be begun for the handler, which has not run. */
  | { readonly state: 'not-started'; readonly error: unknown }

/** How long a completion inside of a transaction waits for whoever has the row: a heartbeat, or somebody who cancels. */
const WAIT_MS = 10_000

const threw = (error: unknown): Run => ({ state: 'threw', error: readable(error) })

/** Anything can be thrown, also what throws when it is asked what it is. */
function readable(error: unknown): unknown {
  try {
    Object.getPrototypeOf(Object(error))
    return error
  } catch {
    return new Error('What was thrown cannot be looked at.')
  }
}

/** Runs the handler, in time, and says how it ended. Answers what is settled when the handler itself has ended, which may be later. */
export function runAttempt(
  engine: Engine,
  attempt: Attempt,
  handler: AnyHandler,
  onEnd: (run: Run) => void,
): Promise<unknown> {
  const { transactional, timeoutMs } = attempt.definition
  const limit = timeoutMs === undefined ? undefined : new TimeLimit(attempt, timeoutMs)
  const running = transactional
    ? runInTransaction(engine, attempt, handler, limit)
    : runAlone(engine, attempt, handler)
  if (limit === undefined) running.then(onEnd, (error) => onEnd(threw(error)))
  else void limit.race(running.catch(threw)).then(onEnd)
  return running
}

/** It waits for nothing that is there: of the shortest jobs, the promises are what takes time. */
async function runAlone(engine: Engine, attempt: Attempt, handler: AnyHandler): Promise<Run> {
  const { input, result } = attempt.definition
  const given = input ? await readInput(attempt) : attempt.job.input
  const value = await handler(given, new AttemptContext(engine, attempt))
  return { state: 'returned', result: result ? await readResult(attempt, value) : textOf(attempt, value) }
}

/** Raised by `job_complete_with`, in the message that also commits. */
const NOT_HELD = 'DIB01'

/** A statement that goes on when the time of its handler is over is ended by the server so much later: the signal is first. */
const SPARE_MS = 1_000

/** Effect and end commit together. Until then nobody can tell that it runs, but by its lease: a claim that was lost meanwhile fails here, and nothing is kept. */
async function runInTransaction(
  engine: Engine,
  attempt: Attempt,
  handler: AnyHandler,
  limit: TimeLimit | undefined,
): Promise<Run> {
  const { job } = attempt
  const { database } = engine
  const input = await readInput(attempt)
  return await inOwnTransaction(engine, attempt, limit, async (tx) => {
    attempt.isCommitting = false // it may be the next run, after a conflict
    const handling = Promise.resolve(handler(input, new AttemptContext(engine, attempt, tx)))
    // A transaction is not kept open for a handler that ignores its signal.
    const value = await unlessAborted(handling, attempt.signal)
    const result = await readResult(attempt, value)
    const values = [String(job.id), String(job.fence), result, String(job.keepDays), String(WAIT_MS)]
    tx.closeWith([database.bind(completeJobWith, values)])
    attempt.isCommitting = true
  })
}

/**
 * Begins the transaction of a handler. While all clients of the pool are in use, the attempt waits for one, no longer than its lease. The wait is not part of `timeoutMs`. If no transaction can be
 * begun, the handler has not started, and the attempt does not count.
 */
async function inOwnTransaction(
  { database }: Engine,
  attempt: Attempt,
  limit: TimeLimit | undefined,
  fn: (tx: FramedTransaction) => Promise<void>,
): Promise<Run> {
  const { timeoutMs = Number.POSITIVE_INFINITY, leaseMs } = attempt.definition
  const waitUntil = performance.now() + leaseMs
  let hasStarted = false
  const start = (tx: FramedTransaction): Promise<void> => {
    attempt.signal.throwIfAborted() // the job may have been given back during the wait
    if (!hasStarted) limit?.restart()
    hasStarted = true
    return fn(tx)
  }
  limit?.pause()
  for (;;) {
    try {
      const connectMs = Math.max(1, waitUntil - performance.now())
      await repeatTransaction(database, start, { deadlineMs: timeoutMs + SPARE_MS }, { connectMs })
      return { state: 'completed' }
    } catch (error) {
      // A handler that has lost an answer of its own has failed, as with any other error.
      if (attempt.isCommitting && error instanceof CommitOutcomeUnknownError) return { state: 'unknown' }
      if (error instanceof DatabaseError && error.sqlState === NOT_HELD) return { state: 'late' }
      if (hasStarted) throw error
      attempt.signal.throwIfAborted()
      if (!(error instanceof BusyError) || performance.now() >= waitUntil)
        return { state: 'not-started', error }
    }
  }
}

async function readInput({ definition, job, subject }: Attempt): Promise<unknown> {
  if (!definition.input) return job.input
  return await parseStored(definition.input, job.input, `the input of ${subject}`)
}

async function readResult(attempt: Attempt, value: unknown): Promise<string | null> {
  const { definition, subject } = attempt
  const text = textOf(attempt, value)
  // As whoever asks for it will see it.
  if (definition.result)
    await checkOutcome(definition.result, `the result of ${subject}`, JSON.parse(text ?? 'null'))
  return text
}

function textOf({ subject }: Attempt, value: unknown): string | null {
  return value === undefined || value === null ? null : toOutcome(`the result of ${subject}`, value)
}

/** Ends an attempt with `JobTimeoutError` when its time is over. */
class TimeLimit {
  readonly #attempt: Attempt
  readonly #timeoutMs: number
  #onTimeout: (run: Run) => void = () => {}
  #timer: NodeJS.Timeout | undefined

  constructor(attempt: Attempt, timeoutMs: number) {
    this.#attempt = attempt
    this.#timeoutMs = timeoutMs
    this.restart()
  }

  /** The whole time from now on. */
  restart(): void {
    this.pause()
    this.#timer = setTimeout(() => this.#expire(), this.#timeoutMs)
  }

  pause(): void {
    clearTimeout(this.#timer)
  }

  /** How `run`, which does not reject, ends: by itself or by this limit, whichever comes first. */
  race(run: Promise<Run>): Promise<Run> {
    return new Promise((resolve) => {
      this.#onTimeout = resolve
      void run.then((ended) => {
        this.pause()
        resolve(ended)
      })
    })
  }

  #expire(): void {
    const error = new JobTimeoutError(this.#attempt.subject, this.#timeoutMs)
    this.#attempt.abort(error)
    this.#onTimeout(threw(error))
  }
}
