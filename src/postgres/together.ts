import type { ClientBase, Connection } from 'pg'
import { untouched } from './session.js'
import { inlineValues, nameStatement, type RenderedStatement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

/** One of our statements with its values. */
export interface BoundStatement {
  readonly statement: RenderedStatement
  readonly values: readonly TextValue[]
}

/** One of several statements that share a message; as text where it is another each time, and has no rows. */
export type Part = BoundStatement | string

/** BEGIN, COMMIT and the like, which come again and again. */
export const control = (text: string): BoundStatement => ({
  statement: nameStatement({ text, readOnly: false }),
  values: [],
})

/** What came of a message: the rows of the last statement of ours in it, and what the last of all was. */
export interface Outcome {
  readonly rows: readonly TextRow[]
  readonly command: string
}

/**
 * Sends several statements in one message, which costs one wait for the server. If one fails, those behind it are not run.
 *
 * With names the server has planned ours before: written into a text, each call of `once` cost it 250 µs more.
 */
export async function queryTogether(
  client: ClientBase,
  parts: readonly Part[],
  prepared: boolean,
): Promise<Outcome> {
  if (!prepared || !takesMessages(client)) return queryAsText(client, parts)
  try {
    const [answer, onAnswer] = awaited()
    client.query(new Exchange(parts, onAnswer))
    return await answer
  } catch (error) {
    // To show who has sent it, as `pg` does, and not the socket that it came from.
    if (error instanceof Error) Error.captureStackTrace(error)
    throw error
  }
}

/**
 * Sends a statement, and in the same message another that begins when the first is over, whatever came of it, in a transaction of its own: it costs no wait.
 *
 * @returns both answers, of which the second may be left alone; undefined if this client cannot do that, and was asked nothing
 */
export function queryThen(
  client: ClientBase,
  first: BoundStatement,
  second: BoundStatement,
): { readonly first: Promise<Outcome>; readonly second: Promise<Outcome> } | undefined {
  if (!takesMessages(client)) return undefined
  const [firstAnswer, onFirst] = awaited()
  const [secondAnswer, onSecond] = awaited()
  const behind = new Exchange([second], onSecond)
  client.query(new Exchange([first], onFirst, behind))
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

/** Neither the native client does, nor one that pipelines by itself. */
const takesMessages = (client: ClientBase): boolean =>
  Reflect.get(client, 'connection')?.parsedStatements !== undefined &&
  Reflect.get(client, 'pipeline') !== true

async function queryAsText(client: ClientBase, parts: readonly Part[]): Promise<Outcome> {
  const results: unknown = await client.query({ text: textOf(parts), types: untouched })
  const all = [results as { rows: TextRow[]; command: string }].flat() // one is not in an array
  return { rows: all.findLast(({ rows }) => rows.length > 0)?.rows ?? [], command: all.at(-1)?.command ?? '' }
}

const textOf = (parts: readonly Part[]): string =>
  parts
    .map((part) => (typeof part === 'string' ? part : inlineValues(part.statement, part.values)))
    .join('; ')

/** What the queries of `pg` do with its connection, whose types know an earlier one. */
type Wire = Pick<Connection, 'stream' | 'sync' | 'on' | 'off'> & {
  /** SQL by name, of what the session has prepared. */
  readonly parsedStatements: Record<string, string | undefined>
  parse(statement: { name: string; text: string }): void
  bind(config: { statement: string; values: readonly TextValue[] }): void
  describe(target: { type: 'P'; name: string }): void
  execute(portal: { portal: string }): void
}

type Callback = (error: unknown, outcome?: Outcome) => void

/** What `pg` calls a submittable: it writes its own messages and is handed the answers. */
class Exchange {
  /** For those who watch what a client is asked. */
  readonly text: string
  /** None of its own, but there: OpenTelemetry takes what has none for a text, and makes a copy of it with a comment. */
  readonly name = ''
  /** `pg` puts its own around it where a query has a time limit. */
  callback: Callback
  readonly #parts: readonly Part[]
  /** What is asked next, and is sent with this. */
  readonly #behind: Exchange | undefined
  #isWritten = false
  /** What was sent to be parsed and is not answered yet, in order. */
  readonly #parsing: (RenderedStatement | undefined)[] = []
  #onParsed: (() => void) | undefined
  #wire: Wire | undefined
  #columns: readonly string[] = []
  #rows: TextRow[] = []
  #command = ''

  constructor(parts: readonly Part[], callback: Callback, behind?: Exchange) {
    this.#parts = parts
    this.callback = callback
    this.#behind = behind
    this.text = parts.map((part) => (typeof part === 'string' ? part : part.statement.text)).join('; ')
  }

  submit(connection: Connection): null {
    const wire = connection as unknown as Wire
    if (!this.#isWritten) {
      wire.stream.cork?.() // not every stream can, and `pg` does without
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

  /** `before`: what is parsed in front of it. */
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

  /** A statement that was parsed stays in the session, also if its message fails then. */
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
