import { readBind, readParse, readQuery } from './frontend.js'
import type { Message } from './message-reader.js'

/** One statement of an extended query, with the bytes of all its messages. */
export interface Execution {
  readonly text: string
  readonly values: readonly (string | null)[]
  readonly bytes: Buffer
}

/** One request of a client: a simple query, or an extended query up to its Sync. */
export class Request {
  /** The SQL of all statements. */
  readonly texts: string[] = []
  /** The parameters of all Binds. */
  values: readonly (string | null)[] = []
  /** The number of Binds. */
  binds = 0
  /** True once the request is complete. A Sync or a simple query completes it. */
  isClosed = false
  /** True if the client has sent a Flush, and so waits for a response to an incomplete request. */
  isFlushed = false
  /** True for a simple query, which may have several statements. */
  isSimple = false
  readonly #messages: Message[] = []
  readonly #executions: Execution[] = []
  /** The last Bind, until its Execute. */
  #bound: Pick<Execution, 'text' | 'values'> | undefined
  /** The number of messages up to the last Execute. */
  #executed = 0
  /** True if a portal is executed twice, or if an unnamed statement was parsed for an earlier Execute. */
  #isInseparable = false
  /** True if an unnamed statement was parsed since the last Execute. */
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
        // A statement that was prepared by SQL, or before this connection was read, has an unknown text.
        const sql = prepared.get(statement) ?? `execute ${statement || 'unnamed'}`
        if (this.texts.at(-1) !== sql) this.texts.push(sql)
        this.values = [...this.values, ...values]
        this.#bound = { text: sql, values }
        // Another statement, sent in between, could replace the unnamed one.
        if (statement === '' && !this.#hasUnnamed) this.#isInseparable = true
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
    if (!this.#bound) this.#isInseparable = true
    else this.#executions.push({ ...this.#bound, bytes: Buffer.concat(messages.map(({ bytes }) => bytes)) })
    this.#bound = undefined
    this.#hasUnnamed = false
  }

  /** The statements of an extended query that can be sent one by one. Empty if the request must stay whole. */
  get executions(): readonly Execution[] {
    const endsWithSync = this.isClosed && this.#messages.length - this.#executed === 1
    return endsWithSync && !this.#isInseparable && !this.isFlushed ? this.#executions : []
  }

  get text(): string {
    return this.texts.join('; ')
  }

  get bytes(): Buffer {
    return Buffer.concat(this.#messages.map(({ bytes }) => bytes))
  }

  /**
   * Returns the bytes to send the request a second time. They lack the Parse of each named statement that the server has
   * prepared, since a second Parse with its name would fail. `kept` is the number of these.
   *
   * @param parsed how many Parse messages the server has answered
   */
  bytesToResend(parsed: number): { readonly bytes: Buffer; readonly kept: number } {
    const stays = this.#messages
      .filter(({ type }) => type === 'P')
      .slice(0, parsed)
      .filter(({ bytes }) => readParse(bytes).name !== '')
    const rest = this.#messages.filter((message) => !stays.includes(message))
    return { bytes: Buffer.concat(rest.map(({ bytes }) => bytes)), kept: stays.length }
  }
}
