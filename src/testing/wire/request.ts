import { readBind, readParse, readQuery } from './frontend.js'
import type { Message } from './message-reader.js'

/** One statement of an extended exchange, with all that was sent for it. */
export interface Execution {
  readonly text: string
  readonly values: readonly (string | null)[]
  readonly bytes: Buffer
}

/** What a client asks for at once: one simple query, or an extended exchange up to its Sync. */
export class Request {
  /** The SQL of all it executes. */
  readonly texts: string[] = []
  /** Parameters of all its Binds. */
  values: readonly (string | null)[] = []
  /** How many Binds it has. */
  binds = 0
  /** Sync or a simple query has ended it; until then more of it may come. */
  isClosed = false
  /** The client waits for an answer though the request is not closed. */
  isFlushed = false
  /** It came as a simple query, which may hold several statements. */
  isSimple = false
  readonly #messages: Message[] = []
  readonly #executions: Execution[] = []
  /** What was bound last and is not executed yet. */
  #bound: Pick<Execution, 'text' | 'values'> | undefined
  /** How many messages belong to what was executed. */
  #executed = 0
  /** A portal is executed more than once, or a statement without a name that an earlier one has parsed. */
  #isTangled = false
  /** What has no name was parsed for the next that is executed. */
  #hasUnnamed = false

  /** @param prepared SQL by the name of its prepared statement, for the whole connection */
  add(message: Message, prepared: Map<string, string>): void {
    this.#messages.push(message)
    switch (message.type) {
      case 'P': {
        const { name, sql } = readParse(message.bytes)
        prepared.set(name, sql)
        this.texts.push(sql)
        if (name === '') this.#hasUnnamed = true
        break
      }
      case 'B': {
        const { statement, values } = readBind(message.bytes)
        // Prepared by SQL, or before we were there: something is executed, whatever it is.
        const sql = prepared.get(statement) ?? `execute ${statement || 'unnamed'}`
        if (this.texts.at(-1) !== sql) this.texts.push(sql)
        this.values = [...this.values, ...values]
        this.#bound = { text: sql, values }
        // Whatever is sent in between may take its place.
        if (statement === '' && !this.#hasUnnamed) this.#isTangled = true
        this.binds++
        break
      }
      case 'Q':
        this.texts.push(readQuery(message.bytes))
        this.isSimple = true
        this.isClosed = true
        break
      case 'H':
        this.isFlushed = true
        break
      case 'E':
        if (this.texts.length === 0) this.texts.push('execute portal')
        this.#noteExecution()
        break
      case 'F':
        this.texts.push('execute function')
        this.isClosed = true
        break
      case 'S':
        this.isClosed = true
        break
    }
  }

  #noteExecution(): void {
    const messages = this.#messages.slice(this.#executed)
    this.#executed = this.#messages.length
    if (!this.#bound) this.#isTangled = true
    else this.#executions.push({ ...this.#bound, bytes: Buffer.concat(messages.map(({ bytes }) => bytes)) })
    this.#bound = undefined
    this.#hasUnnamed = false
  }

  /** The statements of an extended exchange that can be sent one by one; none where it must stay whole. */
  get executions(): readonly Execution[] {
    const isAllThere = this.isClosed && this.#messages.length - this.#executed === 1
    return isAllThere && !this.#isTangled && !this.isFlushed ? this.#executions : []
  }

  get text(): string {
    return this.texts.join('; ')
  }

  get bytes(): Buffer {
    return Buffer.concat(this.#messages.map(({ bytes }) => bytes))
  }

  /**
   * To send it a second time, after so many of its Parses were answered: a named statement that was parsed stays, and would be
   * refused. `kept` is how many those are.
   */
  again(parsed: number): { readonly bytes: Buffer; readonly kept: number } {
    const stays = this.#messages
      .filter(({ type }) => type === 'P')
      .slice(0, parsed)
      .filter(({ bytes }) => readParse(bytes).name !== '')
    const rest = this.#messages.filter((message) => !stays.includes(message))
    return { bytes: Buffer.concat(rest.map(({ bytes }) => bytes)), kept: stays.length }
  }
}
