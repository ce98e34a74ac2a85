import { BusyError, CommitOutcomeUnknownError, DatabaseError, JobTimeoutError } from '../errors.js'
import { toOutcome } from '../postgres/json.js'
import { checkOutcome, parseStored } from '../postgres/standard-schema.js'
import { repeatTransaction } from '../postgres/transaction.js'
import type { InternalTransaction } from '../postgres/transaction-handle.js'
import { unlessAborted } from '../postgres/with-timeout.js'
import type { Attempt } from './attempt.js'
import type { Engine } from './engine.js'
import type { AnyHandler } from './handlers.js'
import { AttemptContext } from './job-context.js'
import { completeJobWith } from './job-statements.js'

/** The end of a handler. */
export type RunResult =
  | { readonly state: 'returned'; readonly result: string | null }
  /** The transaction of the handler is committed, and has recorded the outcome. */
  | { readonly state: 'committed' }
  /** The transaction of the handler was refused, because another worker has the job. */
  | { readonly state: 'refused' }
  /** The answer to the COMMIT of the handler was lost. The row of the job shows whether it is committed. */
  | { readonly state: 'unknown' }
  | { readonly state: 'threw'; readonly error: unknown }
  /** The handler has not run, because no transaction could begin. */
  | { readonly state: 'not-started'; readonly error: unknown }

/** How long the completion inside the transaction waits for the row, which a heartbeat or a cancellation may have locked. */
const WAIT_MS = 10_000

const threw = (error: unknown): RunResult => ({ state: 'threw', error: readable(error) })

/** A handler can throw anything, such as a proxy that throws when it is read. */
function readable(error: unknown): unknown {
  try {
    Object.getPrototypeOf(Object(error))
    return error
  } catch {
    return new Error('The handler has thrown a value that cannot be read.')
  }
}

/**
 * Runs the handler, and calls `onEnd` once, at the latest when the time limit is over. The promise settles when the handler itself has ended, which may
 * be later.
 */
export function runAttempt(
  engine: Engine,
  attempt: Attempt,
  handler: AnyHandler,
  onEnd: (run: RunResult) => void,
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

/** Awaits only what it must: for short jobs, promises take most of the time. */
async function runAlone(engine: Engine, attempt: Attempt, handler: AnyHandler): Promise<RunResult> {
  const { input, result } = attempt.definition
  const parsed = input ? await readInput(attempt) : attempt.job.input
  const value = await handler(parsed, new AttemptContext(engine, attempt))
  return {
    state: 'returned',
    result: result ? await readResult(attempt, value) : toResultJson(attempt, value),
  }
}

/** The SQLSTATE that `job_complete_or_raise` raises, in the message that also commits. */
const NOT_HELD = 'DIB01'

/** The time from the signal of a timeout until the server ends the current statement of the handler. */
const SPARE_MS = 1_000

/** Commits the writes of the handler together with the outcome. If the claim was lost meanwhile, the commit fails, and nothing is kept. */
async function runInTransaction(
  engine: Engine,
  attempt: Attempt,
  handler: AnyHandler,
  limit: TimeLimit | undefined,
): Promise<RunResult> {
  const { job } = attempt
  const { database } = engine
  const input = await readInput(attempt)
  return await inOwnTransaction(engine, attempt, limit, async (tx) => {
    if (attempt.state === 'committing') attempt.start()
    const handling = Promise.resolve(handler(input, new AttemptContext(engine, attempt, tx)))
    // Do not keep the transaction open for a handler that ignores its signal.
    const value = await unlessAborted(handling, attempt.signal)
    const result = await readResult(attempt, value)
    const values = [String(job.id), String(job.fence), result, String(job.keepDays), String(WAIT_MS)]
    attempt.startCommit()
    tx.sendWithCommit([database.bind(completeJobWith, values)])
  })
}

/**
 * Begins the transaction of a handler. While all clients of the pool are in use, the attempt waits for one, no longer than its lease. The wait is not part of
 * `timeoutMs`. If no transaction can be begun, the handler has not started, and the attempt does not count.
 */
async function inOwnTransaction(
  { database }: Engine,
  attempt: Attempt,
  limit: TimeLimit | undefined,
  fn: (tx: InternalTransaction) => Promise<void>,
): Promise<RunResult> {
  const { timeoutMs = Number.POSITIVE_INFINITY, leaseMs } = attempt.definition
  const waitUntil = performance.now() + leaseMs
  let hasStarted = false
  const start = (tx: InternalTransaction): Promise<void> => {
    // guard: job.released-not-started
    attempt.signal.throwIfAborted() // the job may have been released during the wait
    if (!hasStarted) limit?.restart()
    hasStarted = true
    return fn(tx)
  }
  limit?.pause()
  for (;;) {
    try {
      const connectMs = Math.max(1, waitUntil - performance.now())
      await repeatTransaction(database, start, { deadlineMs: timeoutMs + SPARE_MS }, { connectMs })
      return { state: 'committed' }
    } catch (error) {
      // If the handler itself has lost an answer, it has failed, as with any other error.
      if (attempt.state === 'committing' && error instanceof CommitOutcomeUnknownError)
        return { state: 'unknown' }
      const isRefused = error instanceof DatabaseError && error.sqlState === NOT_HELD
      if (attempt.state === 'committing' && isRefused) return { state: 'refused' }
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
  const text = toResultJson(attempt, value)
  // Check the value that readers will get.
  if (definition.result)
    await checkOutcome(definition.result, `the result of ${subject}`, JSON.parse(text ?? 'null'))
  return text
}

function toResultJson({ subject }: Attempt, value: unknown): string | null {
  return value === undefined || value === null ? null : toOutcome(`the result of ${subject}`, value)
}

/** Aborts an attempt with `JobTimeoutError` when its time is over. */
class TimeLimit {
  readonly #attempt: Attempt
  readonly #timeoutMs: number
  #onTimeout: (run: RunResult) => void = () => {}
  #timer: NodeJS.Timeout | undefined

  constructor(attempt: Attempt, timeoutMs: number) {
    this.#attempt = attempt
    this.#timeoutMs = timeoutMs
    this.restart()
  }

  /** Starts the whole time again. */
  restart(): void {
    this.pause()
    this.#timer = setTimeout(() => this.#expire(), this.#timeoutMs)
  }

  pause(): void {
    clearTimeout(this.#timer)
  }

  /** Resolves with `run`, which must not reject, or when the time is over. */
  race(run: Promise<RunResult>): Promise<RunResult> {
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
