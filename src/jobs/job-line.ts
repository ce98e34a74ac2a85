import { CommitOutcomeUnknownError, ConnectionLostError, DibsError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import { translateError } from '../postgres/fault.js'
import { NotSentError, ReservedLine } from '../postgres/reserved-line.js'
import type { Statement } from '../postgres/statement.js'
import type { TextRow, TextValue } from '../postgres/text-values.js'

/** How long a statement of the engine may take before its connection is taken for silent. Each is bounded in what it does, and none waits for a row. */
const ANSWER_MS = 15_000

const because = (cause: unknown): string =>
  cause instanceof Error && cause.message ? `: ${cause.message.replace(/\.$/, '')}` : ''

/** A connection that handlers cannot starve: one at a time, each answered or failed within bounds. */
export class JobLine {
  readonly #line: ReservedLine

  constructor(database: Database) {
    this.#line = new ReservedLine(database, { prepared: database.prepared })
  }

  enter(): void {
    this.#line.enter()
  }

  leave(): void {
    this.#line.leave()
  }

  /** `ConnectionLostError`: it was not sent; `CommitOutcomeUnknownError`: it was, and nobody knows; anything else: the server has refused it. */
  async send(statement: Statement, values: readonly TextValue[], withinMs = ANSWER_MS): Promise<TextRow[]> {
    // What is said after the last worker has left opens it once more, and no longer than for this.
    this.#line.enter()
    try {
      return await this.#line.send(statement, values, withinMs, 5_000)
    } catch (error) {
      if (error instanceof NotSentError)
        throw new ConnectionLostError(`A connection for jobs could not be made${because(error.cause)}.`, {
          cause: error.cause,
        })
      const translated = translateError(error)
      if (translated instanceof DibsError && !(translated instanceof ConnectionLostError)) throw translated
      throw new CommitOutcomeUnknownError('a statement', { cause: error })
    } finally {
      this.#line.leave()
    }
  }
}
