/** Reads and writes the server messages that the gate and the proxy need. */

/** I: idle; T: in a transaction; E: in a transaction that failed. */
export type TransactionStatus = 'I' | 'T' | 'E'

export const readStatus = (readyForQuery: Buffer): TransactionStatus =>
  String.fromCharCode(readyForQuery[5] as number) as TransactionStatus

export const readyForQuery = (status: TransactionStatus): Buffer =>
  Buffer.from(`Z\0\0\0\x05${status}`, 'latin1')

/** Reads the process id of the connection's backend from BackendKeyData. */
export const readPid = (backendKeyData: Buffer): number => backendKeyData.readInt32BE(5)

/** The fields of an ErrorResponse or a NoticeResponse, by their letters: C code, M message, D detail … */
export function readFields(bytes: Buffer): ReadonlyMap<string, string> {
  const fields = new Map<string, string>()
  for (let at = 5; bytes[at] !== 0 && at < bytes.length; ) {
    const end = bytes.indexOf(0, at)
    fields.set(String.fromCharCode(bytes[at] as number), bytes.toString('utf8', at + 1, end))
    at = end + 1
  }
  return fields
}

export interface ErrorFields {
  readonly severity: 'ERROR' | 'FATAL' | 'PANIC'
  /** The severity in the server's language. */
  readonly shown?: string | undefined
  /** An SQLSTATE. */
  readonly code: string
  readonly message: string
}

export function errorResponse({ severity, shown = severity, code, message }: ErrorFields): Buffer {
  const fields = `S${shown}\0V${severity}\0C${code}\0M${message}\0\0`
  const head = Buffer.alloc(5)
  head.write('E', 0, 'latin1')
  head.writeInt32BE(Buffer.byteLength(fields) + 4, 1)
  return Buffer.concat([head, Buffer.from(fields)])
}

/** CommandComplete: `UPDATE 1`. */
export const readTag = (commandComplete: Buffer): string =>
  commandComplete.toString('utf8', 5, commandComplete.length - 1)

export function commandComplete(tag: string): Buffer {
  const head = Buffer.alloc(5)
  head.write('C', 0, 'latin1')
  head.writeInt32BE(tag.length + 5, 1)
  return Buffer.concat([head, Buffer.from(`${tag}\0`)])
}

export interface DescribedColumn {
  readonly name: string
  /** False for the binary format. */
  readonly isText: boolean
  /** True for the type `void`. */
  readonly isVoid: boolean
}

const VOID_TYPE = 2278

/** Reads the columns from a RowDescription. */
export function readColumns(rowDescription: Buffer): readonly DescribedColumn[] {
  const count = rowDescription.readInt16BE(5)
  const columns: DescribedColumn[] = []
  let at = 7
  for (let i = 0; i < count; i++) {
    const end = rowDescription.indexOf(0, at)
    const name = rowDescription.toString('utf8', at, end)
    at = end + 1 + 18
    const isVoid = rowDescription.readInt32BE(at - 12) === VOID_TYPE
    columns.push({ name, isText: rowDescription.readInt16BE(at - 2) === 0, isVoid })
  }
  return columns
}

/** Reads the values of a DataRow, each as text. */
export function readRow(dataRow: Buffer): (string | null)[] {
  const values: (string | null)[] = []
  let at = 7
  for (let left = dataRow.readInt16BE(5); left > 0; left--) {
    const length = dataRow.readInt32BE(at)
    at += 4
    values.push(length < 0 ? null : dataRow.toString('utf8', at, at + length))
    at += Math.max(length, 0)
  }
  return values
}
