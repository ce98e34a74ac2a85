import type pg from 'pg'
import type { Tx } from '../../src/postgres/executor.js'
import type { JoinedTransaction } from '../../src/postgres/joined-transaction.js'

/** An open transaction of the library under test. */
export interface OpenTransaction {
  /** The transaction that the adapter returns. */
  readonly tx: Tx
  /** Writes a row by the library's own means. */
  insert(id: string, label: string): Promise<unknown>
  savepoint(fn: (inner: Tx) => Promise<void>): Promise<unknown>
}

/** The library, on a pool of one connection, with settings that change values and names where it has such. */
export interface Library {
  transaction(fn: (open: OpenTransaction) => Promise<void>, isolation?: 'repeatable read'): Promise<unknown>
  /** Values that a joined call must refuse as a transaction. */
  readonly impostors?: Readonly<Record<string, unknown>>
  close(): Promise<unknown>
}

export interface Harness {
  /** `schema` holds a table `items (id text, label text)`. */
  open(schema: string): Promise<Library>
  /** Without the types. Absent for plain `pg`, which has no adapter. */
  readonly adapt?: (given: never) => Tx
  /** The library may never send COMMIT while a statement of a call that nobody awaits is on its way. */
  readonly losesCommit?: boolean
  /** The library does not say how many rows a statement without `returning` changed. */
  readonly hidesCount?: boolean
}

/** The arguments of the suite's cases. */
export interface Context {
  readonly schema: string
  readonly admin: pg.Pool
  readonly harness: Harness
  transaction(
    fn: (session: JoinedTransaction, open: OpenTransaction) => Promise<unknown>,
    isolation?: 'repeatable read',
  ): Promise<unknown>
  impostors(): Readonly<Record<string, unknown>>
  ids(): Promise<string[]>
}
