import { BusyError, CommitOutcomeUnknownError, DatabaseError, JobTimeoutError } from '../errors.js'
import { toOutcome } from '../postgres/json.js'
import { checkOutcome, parseStored } from '../postgres/standard-schema.js'
import { repeatTransaction } from '../postgres/transaction.js'
import type { FramedTransaction } from '../postgres/transaction-handle.js'
import { unlessAborted, withTimeout } from '../postgres/with-timeout.js'
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
  const running = transactional
    ? runInTransaction(engine, attempt, handler)
    : runAlone(engine, attempt, handler)
  if (timeoutMs === undefined) running.then(onEnd, (error) => onEnd(threw(error)))
  else {
    const timeOut = (): Run => {
      const error = new JobTimeoutError(attempt.subject, timeoutMs)
      attempt.abort(error)
      return threw(error)
    }
    void withTimeout(running.catch(threw), timeoutMs, timeOut).then(onEnd)
  }
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
async function runInTransaction(engine: Engine, attempt: Attempt, handler: AnyHandler): Promise<Run> {
  const { job } = attempt
  const { database } = engine
  const input = await readInput(attempt)
  return await inOwnTransaction(engine, attempt, async (tx) => {
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

/** As many run at once as the pool has clients. The others wait for theirs as long as they have the job: that they have to is no failure of theirs. */
async function inOwnTransaction(
  { database }: Engine,
  attempt: Attempt,
  fn: (tx: FramedTransaction) => Promise<void>,
): Promise<Run> {
  const { timeoutMs = Number.POSITIVE_INFINITY } = attempt.definition
  let hasBegun = false
  const begin = (tx: FramedTransaction): Promise<void> => {
    hasBegun = true
    return fn(tx)
  }
  for (;;) {
    try {
      await repeatTransaction(database, begin, { deadlineMs: timeoutMs + SPARE_MS })
      return { state: 'completed' }
    } catch (error) {
      // A handler that has lost an answer of its own has failed, as with any other error.
      if (attempt.isCommitting && error instanceof CommitOutcomeUnknownError) return { state: 'unknown' }
      if (error instanceof DatabaseError && error.sqlState === NOT_HELD) return { state: 'late' }
      if (hasBegun || !(error instanceof BusyError)) throw error
      attempt.signal.throwIfAborted()
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
