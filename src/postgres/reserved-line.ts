import type { Client } from 'pg'
import { endClient, newClient } from './client.js'
import type { Database } from './database.js'
import { toQueryConfig } from './session.js'
import type { Statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

/**
 * One connection beside the pool, for what must not wait until somebody gives a client back: the renewal of leases. It is made
 * when it is first needed and ended when nobody needs it any more.
 */
export class ReservedLine {
  readonly #database: Database
  #client: Client | undefined
  /** It is connected, and has answered what it was asked before. */
  #ready: Promise<unknown> = Promise.resolve()
  #users = 0

  constructor(database: Database) {
    this.#database = database
  }

  enter(): void {
    this.#users++
  }

  leave(): void {
    if (--this.#users > 0) return
    const client = this.#client
    this.#client = undefined
    if (client) void endClient(client)
  }

  /** Sends a statement that may be repeated; within so long it has its answer, or has failed. */
  async send(statement: Statement, values: readonly TextValue[], withinMs: number): Promise<TextRow[]> {
    let timer: NodeJS.Timeout | undefined
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no answer within ${withinMs} ms`)), withinMs)
    })
    let client: Client | undefined
    try {
      client = this.#client ??= this.#open()
      return await Promise.race([this.#ask(client, statement, values), late])
    } catch (error) {
      // An answer may still be under way on it. One that was made meanwhile is somebody else's.
      if (client && this.#client === client) {
        this.#client = undefined
        void endClient(client)
      }
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  #open(): Client {
    const client = newClient(this.#database.pool, {})
    client.on('error', () => {})
    this.#ready = client.connect()
    this.#ready.catch(() => {}) // whoever asks hears of it
    return client
  }

  /** One after the other: `pg` will not queue them for us. */
  #ask(client: Client, statement: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    const config = toQueryConfig(this.#database.render(statement), values, false)
    const answer = this.#ready.then(async () => (await client.query<TextRow>(config)).rows)
    this.#ready = answer
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
