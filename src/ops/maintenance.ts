import { forgetExpiredClaims } from '../claims/claim-statements.js'
import { forgetExpiredKeys } from '../claims/kv-statements.js'
import type { Unfinished } from '../claims/operation.js'
import { forgetQuotas } from '../claims/quota-statements.js'
import { forgetExpiredRates } from '../claims/rate-statements.js'
import { BusyError, ClosedError, ConnectionLostError, InvalidInputError } from '../errors.js'
import { forgetLocks } from '../locks/lock-statements.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import { sleep } from '../postgres/sleep.js'
import type { Statement } from '../postgres/statement.js'

/** What a round of maintenance has done. */
export interface MaintenanceReport {
  /** Claims whose time was over, removed. */
  readonly claimsForgotten: number
  /** Keys of `dibs.kv` whose time was over, removed. */
  readonly keysForgotten: number
  /** Windows and ids of quotas whose time was over, removed. */
  readonly quotasForgotten: number
  /** Locks that nobody has had for a day, removed. */
  readonly locksForgotten: number
  /** Subjects of rate limits that are as if unused, removed. */
  readonly ratesForgotten: number
  /** Operations that were left by processes that are gone, taken over and finished, well or as failed. */
  readonly operationsFinished: number
  /** Taken over, and failed again; they will be tried once more. */
  readonly operationsFailed: number
  /** Given up, after too many attempts that ended without a word. */
  readonly operationsGivenUp: number
}

/** Rows in one statement: short enough not to be in anyone's way. */
const BATCH = 1_000
/** Batches in one round. What is left over is expired all the same, and goes in the next. */
const MAX_BATCHES = 100
/** How often something that is over, and that others have just then, is come back to in one round, and after how long. */
const MAX_BUSY = 10
const BUSY_MS = 10
/** How many of one operation this process takes over at once: a handler that hangs holds up no other operation. */
const MAX_TAKEN = 5

/**
 * Clears away what is over, and finishes what others have left. Any number of processes may do so at once. Nothing needs it to
 * be correct, since expiry is judged at every look; but what a dead process has left of an operation stays until somebody
 * calls or maintains.
 */
export class Maintenance {
  readonly #database: Database
  readonly #operations: ReadonlyMap<string, Unfinished>
  readonly #taken = new Map<string, Set<Promise<boolean>>>()

  constructor(database: Database, operations: ReadonlyMap<string, Unfinished>) {
    this.#database = database
    this.#operations = operations
  }

  /** One round, to the end of what it has taken over. */
  async run(): Promise<MaintenanceReport> {
    const { attempts, errors, ...report } = await this.#round()
    const ended = await Promise.all(attempts)
    const [first, ...others] = errors
    for (const error of others) emit('dibs:maintenance.failed', { ...this.#database.origin, error })
    if (first !== undefined) throw first
    const operationsFinished = ended.filter(Boolean).length
    return { ...report, operationsFinished, operationsFailed: ended.length - operationsFinished }
  }

  /** Round after round, until `signal`; work that was taken over holds up no other. */
  async repeat(everyMs: number, signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      const { errors } = await this.#round(signal)
      if (errors.some((error) => error instanceof ClosedError)) return
      for (const error of errors) emit('dibs:maintenance.failed', { ...this.#database.origin, error })
      // Spread, so that pods that started together do not all come at once.
      await sleep(everyMs * (0.8 + 0.4 * Math.random()), signal, { ref: false }).catch(() => {})
    }
    await Promise.all([...this.#taken.values()].flatMap((taken) => [...taken]))
  }

  /** What fails in one part holds up no other, unless no part can have the database. */
  async #round(signal?: AbortSignal) {
    const errors: unknown[] = []
    const part = async <T>(work: () => Promise<T>, otherwise: T): Promise<T> => {
      if (signal?.aborted || errors.some(isEveryones)) return otherwise
      return work().catch((error) => {
        errors.push(error)
        return otherwise
      })
    }
    const forget = (statement: Statement) => part(() => this.#forget(statement), 0)
    const claimsForgotten = await forget(forgetExpiredClaims)
    const keysForgotten = await forget(forgetExpiredKeys)
    const quotasForgotten = await forget(forgetQuotas)
    const locksForgotten = await forget(forgetLocks)
    const ratesForgotten = await forget(forgetExpiredRates)
    const attempts: Promise<boolean>[] = []
    let operationsGivenUp = 0
    for (const operation of this.#operations.values()) {
      const mine = this.#taken.get(operation.name) ?? new Set()
      this.#taken.set(operation.name, mine)
      if (mine.size >= MAX_TAKEN) continue
      const taken = await part(() => operation.takeOver(MAX_TAKEN - mine.size), {
        gaveUp: 0,
        attempts: [],
      })
      operationsGivenUp += taken.gaveUp
      for (const attempt of taken.attempts) {
        attempts.push(attempt)
        mine.add(attempt)
        void attempt.catch(() => {}).then(() => mine.delete(attempt))
      }
    }
    const forgotten = { claimsForgotten, keysForgotten, quotasForgotten, ratesForgotten, locksForgotten }
    return { ...forgotten, operationsGivenUp, attempts, errors }
  }

  async #forget(statement: Statement): Promise<number> {
    let total = 0
    let busy = 0
    for (let batch = 0; batch < MAX_BATCHES; batch++) {
      const [row] = await this.#database.send(statement, [String(BATCH)])
      const count = Number(row?.count)
      total += count
      if (row?.busy === 'true') {
        if (++busy >= MAX_BUSY) break
        await sleep(BUSY_MS)
      } else if (count < BATCH) break
    }
    return total
  }
}

/** The others would meet it too, each after a wait. */
const isEveryones = (error: unknown): boolean =>
  error instanceof ClosedError || error instanceof BusyError || error instanceof ConnectionLostError

export function checkInterval(everyMs: unknown): number {
  if (typeof everyMs === 'number' && everyMs >= 100 && everyMs <= 2 ** 30) return everyMs
  throw new InvalidInputError('everyMs', `must be a number of milliseconds from 100 to 2^30, not ${everyMs}`)
}
