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
    try {
      return await Promise.race([this.#ask(statement, values), late])
    } catch (error) {
      // An answer that is still under way must not be taken for that of another.
      const client = this.#client
      this.#client = undefined
      if (client) void endClient(client)
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  async #ask(statement: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    const config = toQueryConfig(this.#database.render(statement), values, false)
    let client = this.#client
    if (!client) {
      client = newClient(this.#database.pool, {})
      client.on('error', () => {})
      this.#client = client
      await client.connect()
    }
    return (await client.query<TextRow>(config)).rows
  }
}
