import { setMaxListeners } from 'node:events'
import type { Client } from 'pg'
import { CommitOutcomeUnknownError } from '../errors.js'
import { endClient, newClient, unrefClient } from './client.js'
import type { Database } from './database.js'
import { readFault } from './fault.js'
import { forgetNames, toQueryConfig } from './session.js'
import { sleep } from './sleep.js'
import type { Statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'
import { control, queryTogether } from './together.js'
import { firstFulfilled, unlessAborted, withTimeout } from './with-timeout.js'

/** Where a session's own settings do not fit what our functions expect. */
const BEGIN = control('begin isolation level read committed read write')
const COMMIT = control('commit')

/** It is silent: what was asked may have been done. */
export class NoAnswerError extends Error {}

/** It could not be connected, or others have it: nothing was asked. */
export class NotSentError extends Error {}

/** A connection, and what it was asked. */
class Line {
  readonly client: Client
  isOpen = false
  /** It was lost while nothing was asked. */
  isBroken = false
  /** Not answered yet. */
  waiting = 0
  readonly connected: Promise<void>
  /** It is connected, and has answered what it was asked before. */
  ready: Promise<unknown>
  readonly #ending = new AbortController()

  constructor(database: Database) {
    this.client = newClient(database.pool, {})
    for (const event of ['error', 'end'] as const)
      this.client.on(event, () => {
        this.isBroken = true
      })
    this.connected = this.client.connect().then(() => {
      this.isOpen = true
      unrefClient(this.client)
    })
    this.ready = this.connected
    this.connected.catch(() => {}) // `send` reports the error
    setMaxListeners(0, this.ended) // any number of statements may wait for their answers
  }

  /** Fires when the connection is given up. `connect` of a client that is ended meanwhile never settles. */
  get ended(): AbortSignal {
    return this.#ending.signal
  }

  end(): void {
    this.#ending.abort(new NoAnswerError('the connection was given up'))
    void endClient(this.client)
  }

  /** Waits for `promise` at most `ms`, and no longer than the connection is kept. */
  within<T>(promise: Promise<T>, ms: number): Promise<T> {
    const fail = (): never => {
      throw new NoAnswerError(`no answer within ${ms} ms`)
    }
    return withTimeout(promise, ms, fail, this.ended)
  }
}

/**
 * One connection beside the pool, for what must not wait until somebody gives a client back: the renewal of leases. It is made
 * when it is first needed and ended when nobody needs it any more. `prepared`: its statements come again and again, and get names.
 */
export class ReservedLine {
  readonly #database: Database
  readonly #prepared: boolean
  #line: Line | undefined
  #users = 0

  constructor(database: Database, { prepared = false } = {}) {
    this.#database = database
    this.#prepared = prepared
  }

  /** It has not answered what it was asked before. */
  get isBusy(): boolean {
    return (this.#line?.waiting ?? 0) > 0
  }

  /** It is connected. */
  get isOpen(): boolean {
    return this.#line?.isOpen === true
  }

  /** Resolves when it has answered what it was asked before, or never will. */
  async whenFree(): Promise<void> {
    for (let line = this.#line; line && this.isBusy; line = this.#line)
      await unlessAborted(line.ready, line.ended).catch(() => {})
  }

  enter(): void {
    this.#users++
  }

  leave(): void {
    if (--this.#users === 0) this.#end(this.#line)
  }

  /** Sends a statement that may be repeated; so long after it is connected, which has its own time, it has its answer, or has failed. */
  async send(
    statement: Statement,
    values: readonly TextValue[],
    withinMs: number,
    connectMs = withinMs,
  ): Promise<TextRow[]> {
    const line = this.#open()
    line.waiting++
    try {
      if (!line.isOpen)
        await line.within(line.connected, connectMs).catch((cause) => {
          throw new NotSentError('it could not be connected', { cause })
        })
      return await line.within(this.#ask(line, statement, values), withinMs)
    } catch (error) {
      // An answer may still be under way on it. One that was made meanwhile is somebody else's.
      if (!this.#hasAnswered(error)) this.#end(line)
      throw error
    } finally {
      line.waiting--
    }
  }

  /** The server has refused the statement, and waits for the next. */
  #hasAnswered(error: unknown): boolean {
    const fault = readFault(error)
    return (
      this.#database.autocommitFits &&
      fault?.sqlState !== undefined &&
      !fault.fatal &&
      fault.kind !== 'connection'
    )
  }

  #open(): Line {
    if (this.#line?.isBroken && !this.isBusy) this.#end(this.#line)
    try {
      this.#line ??= new Line(this.#database)
      return this.#line
    } catch (cause) {
      throw new NotSentError('no client could be made', { cause })
    }
  }

  #end(line: Line | undefined): void {
    if (!line || this.#line !== line) return
    this.#line = undefined
    line.end()
  }

  /** One after the other: `pg` will not queue them for us. */
  #ask(line: Line, statement: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    const { client } = line
    const bound = this.#database.bind(statement, values)
    const config = toQueryConfig(bound.statement, values, this.#prepared)
    const ask = async () => (await client.query<TextRow>(config)).rows
    const answer = line.ready.then(async () =>
      this.#database.autocommitFits
        ? await ask().catch((error) => (forgetNames(client, error) ? ask() : Promise.reject(error)))
        : [...(await queryTogether(client, [BEGIN, bound, COMMIT], false)).rows],
    )
    // Without the rows, which would stay in memory until the next answer.
    const done = (): void => {}
    line.ready = answer.then(done, done)
    return answer
  }
}

const lines = new WeakMap<Database, ReservedLine>()

/** The connection that renewals of this process go over. */
export function lineOf(database: Database): ReservedLine {
  const line = lines.get(database) ?? new ReservedLine(database)
  lines.set(database, line)
  return line
}

export interface EitherWay {
  /** How long an answer is waited for, whichever way it takes. */
  readonly withinMs: number
  /** How long the pool is given before the reserved line is asked. Default 0. */
  readonly afterMs?: number | undefined
  /** How long the reserved line may take: what is no renewal must not keep those waiting. Default as long. */
  readonly lineMs?: number | undefined
  /** What is said over the reserved line, if that is something else. */
  readonly overLine?: readonly TextValue[] | undefined
  /** Whether it is an answer also if the same was sent the other way, and that is not answered yet; else that is waited for. */
  readonly isFinal?: ((rows: readonly TextRow[]) => boolean) | undefined
  /** It was sent, may have been done, and there is no answer. */
  readonly onUnsure?: (() => void) | undefined
}

/** An answer that may be due to what was sent the other way. */
class NotFinalError extends Error {
  constructor(readonly rows: TextRow[]) {
    super('the other way has not answered')
  }
}

/** Sends a statement that may be repeated over the pool, or over the reserved line if that is free before a client of the pool is had. */
export async function sendEitherWay(
  database: Database,
  statement: Statement,
  values: readonly TextValue[],
  ways: EitherWay,
): Promise<TextRow[]> {
  const { withinMs, afterMs = 0, lineMs = withinMs, overLine = values, isFinal = () => true, onUnsure } = ways
  const line = lineOf(database)
  const isSent = { pool: false, line: false }
  const overPool = new AbortController()
  let isAnswered = false
  const judge = (rows: TextRow[], other: boolean): TextRow[] => {
    if (other && !isFinal(rows)) throw new NotFinalError(rows)
    isAnswered = true
    return rows
  }
  const askPool = async (): Promise<TextRow[]> => {
    try {
      const rows = await database.sendPart(statement, values, withinMs, () => {
        if (isAnswered) throw new NotSentError('it was answered over the reserved line')
        isSent.pool = true
        overPool.abort()
      })
      return judge(rows, isSent.line)
    } catch (error) {
      overPool.abort()
      if (error instanceof CommitOutcomeUnknownError) onUnsure?.()
      throw error
    }
  }
  const askLine = async (): Promise<TextRow[]> => {
    await sleep(afterMs, overPool.signal)
    await withTimeout(line.whenFree(), withinMs, () => {}, overPool.signal)
    if (overPool.signal.aborted || line.isBusy) throw new NotSentError('it was not free in time')
    isSent.line = true
    try {
      return judge(await line.send(statement, overLine, lineMs), isSent.pool)
    } catch (error) {
      if (!isSettled(error)) onUnsure?.()
      throw error
    }
  }
  line.enter()
  const byPool = askPool()
  try {
    return await firstFulfilled([byPool, askLine()])
  } catch (error) {
    const [told] = (error as AggregateError).errors.filter((one) => one instanceof NotFinalError)
    // What the pool says is what went wrong.
    return told?.rows ?? (await byPool)
  } finally {
    overPool.abort()
    line.leave()
  }
}

/** It was not sent, the server has refused it, or it is an answer after all. */
const isSettled = (error: unknown): boolean =>
  error instanceof NotSentError || error instanceof NotFinalError || readFault(error)?.fatal === false
