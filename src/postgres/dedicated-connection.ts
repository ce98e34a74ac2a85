import { setMaxListeners } from 'node:events'
import type { Client } from 'pg'
import { CommitOutcomeUnknownError, ConnectionLostError, DibsError } from '../errors.js'
import { endClient, newClient, unrefClient } from './client.js'
import { CONNECT_MS } from './connections.js'
import type { Database } from './database.js'
import { isUnusable, readFault, translateError } from './fault.js'
import { forgetNames, toQueryConfig } from './pg-query.js'
import { controlStatement, queryPipeline } from './pipeline.js'
import type { StatementSender } from './send-options.js'
import type { Statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'
import { unlessAborted, withTimeout } from './with-timeout.js'

/** For sessions whose own settings do not fit what our functions expect. */
const BEGIN = controlStatement('begin isolation level read committed read write')
const COMMIT = controlStatement('commit')

/**
 * How long a statement may take by default before the connection counts as silent. No statement on this connection
 * waits for a row.
 */
const ANSWER_MS = 15_000

/** The statement was not sent: the connection could not be made, or another statement uses it. */
export class NotSentError extends ConnectionLostError {}

interface DedicatedSendOptions {
  /** How long to wait for the answer, once the connection is there. */
  readonly deadlineMs?: number | undefined
  /** How long to wait for a connection that is not there yet. */
  readonly connectMs?: number | undefined
}

/** One connection to the server, until it is lost or given up. */
class PhysicalConnection {
  readonly client: Client
  isConnected = false
  /** The connection was lost while no statement ran. */
  isBroken = false
  /** How many statements have no answer yet. */
  unanswered = 0
  readonly connected: Promise<void>
  /** Resolves when the connection is there and all earlier statements are answered. */
  ready: Promise<unknown>
  readonly #closing = new AbortController()

  constructor(database: Database) {
    this.client = newClient(database.pool, {})
    for (const event of ['error', 'end'] as const)
      this.client.on(event, () => {
        this.isBroken = true
      })
    this.connected = this.client.connect().then(() => {
      this.isConnected = true
      unrefClient(this.client)
    })
    this.ready = this.connected
    this.connected.catch(() => {}) // `send` reports the error
    setMaxListeners(0, this.closed) // any number of statements may wait for their answers
  }

  /** Fires when the connection is given up. `connect` never settles if the client is ended before it is connected. */
  get closed(): AbortSignal {
    return this.#closing.signal
  }

  close(): void {
    this.#closing.abort(new Error('the connection was given up'))
    void endClient(this.client)
  }

  /** Waits for `promise` at most `ms`, and no longer than the connection is kept. */
  within<T>(promise: Promise<T>, ms: number): Promise<T> {
    const fail = (): never => {
      throw new Error(`no answer within ${ms} ms`)
    }
    return withTimeout(promise, ms, fail, this.closed)
  }
}

/**
 * One connection outside of the pool, for statements that must not wait until a handler returns a client. The first
 * statement opens the connection, a lost or silent one is replaced, and the last user's release ends it.
 */
export class DedicatedConnection implements StatementSender {
  readonly #database: Database
  readonly #prepared: boolean
  readonly #finishesStatements: boolean
  #connection: PhysicalConnection | undefined
  #users = 0

  /**
   * `prepared`: the same statements come often, and get names. `finishesStatements`: a statement that runs at the last
   * release still gets its answer; otherwise it is given up.
   */
  constructor(database: Database, { prepared = false, finishesStatements = false } = {}) {
    this.#database = database
    this.#prepared = prepared
    this.#finishesStatements = finishesStatements
  }

  /** True while a statement has no answer. */
  get isBusy(): boolean {
    return (this.#connection?.unanswered ?? 0) > 0
  }

  get isConnected(): boolean {
    return this.#connection?.isConnected === true
  }

  /** Resolves when all earlier statements are answered, or never will be. */
  async whenFree(): Promise<void> {
    for (let open = this.#connection; open && this.isBusy; open = this.#connection)
      await unlessAborted(open.ready, open.closed).catch(() => {})
  }

  retain(): void {
    this.#users++
  }

  release(): void {
    if (--this.#users === 0) this.#close(this.#connection)
  }

  /**
   * Sends a statement that may be repeated. Throws `NotSentError` if it was not sent, `CommitOutcomeUnknownError` if no answer
   * came, and another error if the server refused it.
   */
  async send(
    statement: Statement,
    values: readonly TextValue[],
    { deadlineMs = ANSWER_MS, connectMs = CONNECT_MS }: DedicatedSendOptions = {},
  ): Promise<TextRow[]> {
    // A statement after the last release opens the connection once more, for this statement alone.
    const retains = this.#finishesStatements || this.#users === 0
    if (retains) this.retain()
    let connection: PhysicalConnection | undefined
    try {
      connection = this.#open()
      connection.unanswered++
      if (!connection.isConnected)
        await connection.within(connection.connected, connectMs).catch((cause) => {
          throw notConnected(cause)
        })
      return await connection.within(this.#query(connection, statement, values), deadlineMs)
    } catch (error) {
      // A late answer may still come on this connection. By now, other statements may use a new connection, which stays
      // open.
      if (!this.#isRefusal(error)) this.#close(connection)
      throw explain(error)
    } finally {
      if (connection) connection.unanswered--
      if (retains) this.release()
    }
  }

  /** True if the server refused the statement, and the connection is ready for the next. */
  #isRefusal(error: unknown): boolean {
    const fault = readFault(error)
    return (
      this.#database.autocommitFits &&
      fault?.sqlState !== undefined &&
      !fault.fatal &&
      fault.kind !== 'connection'
    )
  }

  #open(): PhysicalConnection {
    if (this.#connection?.isBroken && !this.isBusy) this.#close(this.#connection)
    try {
      this.#connection ??= new PhysicalConnection(this.#database)
      return this.#connection
    } catch (cause) {
      throw notConnected(cause)
    }
  }

  #close(connection: PhysicalConnection | undefined): void {
    if (!connection || this.#connection !== connection) return
    this.#connection = undefined
    connection.close()
  }

  /** Sends the statements one after another: `pg` allows one query at a time on a client. */
  #query(
    connection: PhysicalConnection,
    statement: Statement,
    values: readonly TextValue[],
  ): Promise<TextRow[]> {
    const { client } = connection
    const bound = this.#database.bind(statement, values)
    const config = toQueryConfig(bound.statement, values, this.#prepared)
    const send = async () => (await client.query<TextRow>(config)).rows
    const answer = connection.ready.then(async () =>
      this.#database.autocommitFits
        ? await send().catch((error) => (forgetNames(client, error) ? send() : Promise.reject(error)))
        : [...(await queryPipeline(client, [BEGIN, bound, COMMIT], false)).rows],
    )
    // Drops the rows, which would stay in memory until the next answer.
    const done = (): void => {}
    connection.ready = answer.then(done, done)
    return answer
  }
}

function notConnected(cause: unknown): NotSentError {
  const because = cause instanceof Error && cause.message ? `: ${cause.message.replace(/\.$/, '')}` : ''
  return new NotSentError(`A dedicated connection could not be made${because}.`, { cause })
}

function explain(error: unknown): unknown {
  if (error instanceof NotSentError) return error
  const translated = translateError(error)
  const isAnswer = translated instanceof DibsError && !(translated instanceof ConnectionLostError)
  // Also a read timeout of the caller's own pool settings leaves unknown what the server did.
  if (isAnswer && !isUnusable(error)) return translated
  return new CommitOutcomeUnknownError('a statement', { cause: error })
}

const renewals = new WeakMap<Database, DedicatedConnection>()

/** The connection that lease renewals of this process go over. */
export function renewalConnectionOf(database: Database): DedicatedConnection {
  const connection = renewals.get(database) ?? new DedicatedConnection(database)
  renewals.set(database, connection)
  return connection
}
