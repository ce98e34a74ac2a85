import { type DescribedColumn, readColumns, readFields, readRow, readTag } from '../wire/backend.js'
import type { Message } from '../wire/message-reader.js'

/** What the server answered to one step, as far as a reader or a comparison needs it. */
export interface StepResult {
  /** `UPDATE 1`; the last one if there are several; empty if there is none. */
  readonly tag: string
  /** Names of the columns, where the server told them. */
  readonly columns?: readonly string[] | undefined
  /** The first rows, as text. */
  readonly rows: readonly (readonly (string | null)[])[]
  readonly rowCount: number
  /** It called a function that returns nothing. */
  readonly isVoid?: boolean | undefined
  readonly error?: { readonly code: string; readonly message: string } | undefined
}

/** Rows read, locked or written, as the server counts them. */
export function countOf({ tag, error }: StepResult): { readonly command: string; readonly count: number } {
  const [, command = '', count = '0'] =
    /^(SELECT|UPDATE|DELETE|MERGE|COPY|INSERT) (?:\d+ )?(\d+)$/.exec(tag) ?? []
  return error ? { command, count: 0 } : { command, count: Number(count) }
}

/** More rows are counted and not kept. */
const KEPT_ROWS = 3

/** Reads an answer as it comes. */
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
    if (this.#rows.length >= KEPT_ROWS) return
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
