import { type DescribedColumn, readColumns, readFields, readRow, readTag } from '../wire/backend.js'
import type { Message } from '../wire/message-reader.js'

/** The server's response to one step, as far as reports and comparisons need it. */
export interface StepResult {
  /** The last command tag, such as `UPDATE 1`. Empty if there is none. */
  readonly tag: string
  /** The names of the columns, if the server has described them. */
  readonly columns?: readonly string[] | undefined
  /** The first rows, in text format. */
  readonly rows: readonly (readonly (string | null)[])[]
  readonly rowCount: number
  /** All columns have the type `void`. */
  readonly isVoid?: boolean | undefined
  readonly error?: { readonly code: string; readonly message: string } | undefined
}

/** The number of rows that a step has read, locked or written, from its command tag. */
export function countOf({ tag, error }: StepResult): { readonly command: string; readonly count: number } {
  const [, command = '', count = '0'] =
    /^(SELECT|UPDATE|DELETE|MERGE|COPY|INSERT) (?:\d+ )?(\d+)$/.exec(tag) ?? []
  return error ? { command, count: 0 } : { command, count: Number(count) }
}

/** Further rows are counted and not kept. */
const MAX_KEPT_ROWS = 3

/** Builds the result of a step from the server's messages. */
export class ResultReader {
  #tag = ''
  #columns: readonly DescribedColumn[] = []
  readonly #rows: (string | null)[][] = []
  #rowCount = 0
  #error: StepResult['error']

  read({ type, bytes }: Message): void {
    if (type === 'T') this.#columns = readColumns(bytes)
    else if (type === 'D') this.#readRow(bytes)
    else if (type === 'C') this.#tag = readTag(bytes)
    else if (type === 'E') {
      const fields = readFields(bytes)
      this.#error = { code: fields.get('C') ?? '', message: fields.get('M') ?? '' }
    }
  }

  #readRow(bytes: Buffer): void {
    this.#rowCount++
    if (this.#rows.length >= MAX_KEPT_ROWS) return
    const values = readRow(bytes)
    this.#rows.push(
      values.map((value, i) => (value !== null && this.#columns[i]?.isText === false ? '<binary>' : value)),
    )
  }

  get error(): StepResult['error'] {
    return this.#error
  }

  get result(): StepResult {
    return {
      tag: this.#tag,
      ...(this.#columns.length > 0 ? { columns: this.#columns.map(({ name }) => name) } : {}),
      rows: this.#rows,
      rowCount: this.#rowCount,
      ...(this.#columns.length > 0 && this.#columns.every(({ isVoid }) => isVoid) ? { isVoid: true } : {}),
      ...(this.#error ? { error: this.#error } : {}),
    }
  }
}
