import type { ClientBase, Connection } from 'pg'
import { asText } from './pg-query.js'
import { inlineValues, nameStatement, type RenderedStatement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

/** One of our statements with its values. */
export interface BoundStatement {
  readonly statement: RenderedStatement
  readonly values: readonly TextValue[]
}

/** One of several statements in a message. A string is for a statement that differs each time and returns no rows. */
export type Part = BoundStatement | string

/** A statement without values that is sent often, such as BEGIN or COMMIT. */
export const controlStatement = (text: string): BoundStatement => ({
  statement: nameStatement({ text, readOnly: false }),
  values: [],
})

/** The result of a message: the rows of the last bound statement, and the command of the last statement. */
export interface Outcome {
  readonly rows: readonly TextRow[]
  readonly command: string
}

/**
 * Sends several statements in one message, for one round trip. If one fails, the server does not run those after it.
 *
 * Prepared statements keep their plans: as one string, each call of `once` took 250 µs more on the server.
 */
export async function queryPipeline(
  client: ClientBase,
  parts: readonly Part[],
  prepared: boolean,
): Promise<Outcome> {
  if (!prepared || !takesMessages(client)) return queryAsText(client, parts)
  try {
    const [answer, onAnswer] = awaited()
    client.query(new PipelineQuery(parts, onAnswer))
    return await answer
  } catch (error) {
    // Makes the stack show the caller, as with `pg`, and not the socket.
    if (error instanceof Error) Error.captureStackTrace(error)
    throw error
  }
}

/**
 * Sends two statements in one message, each in a separate transaction. The second starts when the first is over, even
 * if the first failed.
 *
 * @returns both answers; the second need not be awaited. Undefined if this client cannot do that: nothing was sent
 */
export function queryWithFollowUp(
  client: ClientBase,
  first: BoundStatement,
  second: BoundStatement,
): { readonly first: Promise<Outcome>; readonly second: Promise<Outcome> } | undefined {
  if (!takesMessages(client)) return undefined
  const [firstAnswer, onFirst] = awaited()
  const [secondAnswer, onSecond] = awaited()
  const behind = new PipelineQuery([second], onSecond)
  client.query(new PipelineQuery([first], onFirst, behind))
  client.query(behind)
  secondAnswer.catch(() => {})
  return { first: firstAnswer, second: secondAnswer }
}

function awaited(): [Promise<Outcome>, Callback] {
  let settle: Callback = () => {}
  const answer = new Promise<Outcome>((resolve, reject) => {
    settle = (error, outcome) => (outcome ? resolve(outcome) : reject(error))
  })
  return [answer, settle]
}

/** True if a client lets a query write its own messages. The native client and a pipelining client do not. */
const takesMessages = (client: ClientBase): boolean =>
  Reflect.get(client, 'connection')?.parsedStatements !== undefined &&
  Reflect.get(client, 'pipeline') !== true

async function queryAsText(client: ClientBase, parts: readonly Part[]): Promise<Outcome> {
  const results: unknown = await client.query({ text: textOf(parts), types: asText })
  const all = [results as { rows: TextRow[]; command: string }].flat() // a single result is not in an array
  return { rows: all.findLast(({ rows }) => rows.length > 0)?.rows ?? [], command: all.at(-1)?.command ?? '' }
}

const textOf = (parts: readonly Part[]): string =>
  parts
    .map((part) => (typeof part === 'string' ? part : inlineValues(part.statement, part.values)))
    .join('; ')

/** The methods of a connection of `pg` that its own queries use. The types of `pg` describe an older version. */
type Wire = Pick<Connection, 'stream' | 'sync' | 'on' | 'off'> & {
  /** The text of each prepared statement of the session, by name. */
  readonly parsedStatements: Record<string, string | undefined>
  parse(statement: { name: string; text: string }): void
  bind(config: { statement: string; values: readonly TextValue[] }): void
  describe(target: { type: 'P'; name: string }): void
  execute(portal: { portal: string }): void
}

type Callback = (error: unknown, outcome?: Outcome) => void

/** A submittable, as `pg` calls it: it writes its own messages and receives the answers. */
class PipelineQuery {
  /** For tools that watch the statements of a client. */
  readonly text: string
  /** OpenTelemetry takes a query without this field for a string, and sends a copy of it with a comment. */
  readonly name = ''
  /** `pg` wraps the callback if a query has a time limit. */
  callback: Callback
  readonly #parts: readonly Part[]
  /** The next query of the client, which is sent in the same message. */
  readonly #behind: PipelineQuery | undefined
  #isWritten = false
  /** The statements sent to be parsed that have no answer yet, in order. Undefined: a string. */
  readonly #parsing: (RenderedStatement | undefined)[] = []
  #onParsed: (() => void) | undefined
  #wire: Wire | undefined
  #columns: readonly string[] = []
  #rows: TextRow[] = []
  #command = ''

  constructor(parts: readonly Part[], callback: Callback, behind?: PipelineQuery) {
    this.#parts = parts
    this.callback = callback
    this.#behind = behind
    this.text = parts.map((part) => (typeof part === 'string' ? part : part.statement.text)).join('; ')
  }

  submit(connection: Connection): null {
    const wire = connection as unknown as Wire
    if (!this.#isWritten) {
      wire.stream.cork?.() // not all streams have it, and `pg` does not need it
      try {
        this.#write(wire, [])
        if (this.#behind) this.#behind.#write(wire, this.#parsing)
      } finally {
        wire.stream.uncork?.()
      }
    }
    this.#watchParsing(wire)
    return null
  }

  /** `before`: the statements that are parsed earlier in the same message. */
  #write(wire: Wire, before: readonly (RenderedStatement | undefined)[]): void {
    this.#isWritten = true
    for (const part of this.#parts) {
      if (typeof part === 'string') this.#sendText(wire, part)
      else this.#sendBound(wire, part, before)
    }
    wire.sync()
  }

  #sendText(wire: Wire, text: string): void {
    this.#parsing.push(undefined)
    wire.parse({ name: '', text })
    wire.bind({ statement: '', values: [] })
    wire.execute({ portal: '' })
  }

  #sendBound(
    wire: Wire,
    { statement, values }: BoundStatement,
    before: readonly (RenderedStatement | undefined)[],
  ): void {
    const { name, text } = statement
    const isParsed = wire.parsedStatements[name] !== undefined
    if (!isParsed && ![...before, ...this.#parsing].some((other) => other?.name === name)) {
      this.#parsing.push(statement)
      wire.parse({ name, text })
    }
    wire.bind({ statement: name, values })
    wire.describe({ type: 'P', name: '' })
    wire.execute({ portal: '' })
  }

  /** Remembers parsed statements: they stay in the session even if their message fails later. */
  #watchParsing(wire: Wire): void {
    if (!this.#parsing.some((statement) => statement)) return
    this.#wire = wire
    this.#onParsed = () => {
      const parsed = this.#parsing.shift()
      if (parsed) wire.parsedStatements[parsed.name] = parsed.text
    }
    wire.on('parseComplete', this.#onParsed)
  }

  #end(): void {
    if (this.#onParsed) this.#wire?.off('parseComplete', this.#onParsed)
  }

  handleRowDescription({ fields }: { fields: readonly { name: string }[] }): void {
    this.#columns = fields.map(({ name }) => name)
    this.#rows = []
  }

  handleDataRow({ fields }: { fields: readonly TextValue[] }): void {
    this.#rows.push(Object.fromEntries(this.#columns.map((name, i) => [name, fields[i] ?? null])))
  }

  handleCommandComplete({ text }: { text: string }): void {
    this.#command = text
  }

  handleReadyForQuery(): void {
    this.#end()
    this.callback(null, { rows: this.#rows, command: this.#command })
  }

  handleError(error: unknown): void {
    this.#end()
    this.callback(error)
  }
}
