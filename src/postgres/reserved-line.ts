import type { Client } from 'pg'
import { endClient, newClient } from './client.js'
import type { Database } from './database.js'
import { toQueryConfig } from './session.js'
import { sleep } from './sleep.js'
import type { Statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'
import { control, queryTogether } from './together.js'

/** Where a session's own settings do not fit what our functions expect. */
const BEGIN = control('begin isolation level read committed read write')
const COMMIT = control('commit')

/** It is silent: what was asked may have been done. */
export class NoAnswerError extends Error {}

/** A connection, and what it was asked. */
class Line {
  readonly client: Client
  isOpen = false
  /** Not answered yet. */
  waiting = 0
  /** It is connected, and has answered what it was asked before. */
  ready: Promise<unknown>

  constructor(database: Database) {
    this.client = newClient(database.pool, {})
    this.client.on('error', () => {})
    this.ready = this.client.connect().then(() => {
      this.isOpen = true
    })
    this.ready.catch(() => {}) // whoever asks hears of it
  }
}

/**
 * One connection beside the pool, for what must not wait until somebody gives a client back: the renewal of leases. It is made
 * when it is first needed and ended when nobody needs it any more.
 */
export class ReservedLine {
  readonly #database: Database
  #line: Line | undefined
  #users = 0

  constructor(database: Database) {
    this.#database = database
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
    while (this.isBusy) await this.#line?.ready.catch(() => {})
  }

  enter(): void {
    this.#users++
  }

  leave(): void {
    if (--this.#users === 0) this.#end(this.#line)
  }

  /** Sends a statement that may be repeated; within so long it has its answer, or has failed. */
  async send(statement: Statement, values: readonly TextValue[], withinMs: number): Promise<TextRow[]> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      const end = (): void => reject(new NoAnswerError(`no answer within ${withinMs} ms`))
      // In a process that stood still the answer may be there, and timers come before it is read.
      timer = setTimeout(() => setImmediate(end), withinMs)
    })
    let line: Line | undefined
    try {
      line = this.#line ??= new Line(this.#database)
      line.waiting++
      return await Promise.race([this.#ask(line, statement, values), late])
    } catch (error) {
      // An answer may still be under way on it. One that was made meanwhile is somebody else's.
      if (line) this.#end(line)
      throw error
    } finally {
      if (line) line.waiting--
      clearTimeout(timer)
    }
  }

  #end(line: Line | undefined): void {
    if (!line || this.#line !== line) return
    this.#line = undefined
    void endClient(line.client)
  }

  /** One after the other: `pg` will not queue them for us. */
  #ask(line: Line, statement: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    const { client } = line
    const bound = this.#database.bind(statement, values)
    const config = toQueryConfig(bound.statement, values, false)
    const answer = line.ready.then(async () =>
      this.#database.autocommitFits
        ? (await client.query<TextRow>(config)).rows
        : [...(await queryTogether(client, [BEGIN, bound, COMMIT], false)).rows],
    )
    line.ready = answer
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
  /** What is said over the reserved line, if that is something else; called when it is. */
  readonly overLine?: (() => readonly TextValue[]) | undefined
  /** Called when the reserved line has answered. */
  readonly heard?: (() => void) | undefined
}

/** Sends a statement that may be repeated over the pool, or over the reserved line if that is free before a client of the pool is had. */
export async function sendEitherWay(
  database: Database,
  statement: Statement,
  values: readonly TextValue[],
  { withinMs, afterMs = 0, lineMs = withinMs, overLine = () => values, heard }: EitherWay,
): Promise<TextRow[]> {
  const line = lineOf(database)
  const chosen = new AbortController()
  let isAnswered = false
  const byPool = database.sendPart(statement, values, withinMs, () => {
    if (isAnswered) throw new Error('it was answered over the reserved line')
    chosen.abort()
  })
  byPool.catch(() => chosen.abort())
  const ask = async (): Promise<TextRow[]> => {
    await sleep(afterMs, chosen.signal)
    await Promise.race([line.whenFree(), sleep(withinMs, chosen.signal)])
    if (chosen.signal.aborted || line.isBusy) throw new NoAnswerError('it was not free in time')
    const rows = await line.send(statement, overLine(), lineMs)
    isAnswered = true
    heard?.()
    return rows
  }
  line.enter()
  try {
    // What the pool says is what went wrong.
    return await Promise.any([byPool, ask()]).catch(() => byPool)
  } finally {
    chosen.abort()
    line.leave()
  }
}
