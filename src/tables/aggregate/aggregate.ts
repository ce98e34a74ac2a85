import { describeRow, idToJson } from '../../errors/describe-row.js'
import { BusyError, DatabaseError, InvalidInputError, NotFoundError, NotWrittenError } from '../../errors.js'
import { unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { abortSignal, boolean } from '../../options/value-options.js'
import type { Row, Tx } from '../../postgres/executor.js'
import { hasWaitedInVain } from '../../postgres/fault.js'
import { trackJoinedMethods } from '../../postgres/open-calls.js'
import { statement } from '../../postgres/statement.js'
import { textArray } from '../../postgres/text-values.js'
import { toColumnText } from '../catalog/column-value.js'
import type { Table } from '../catalog/table.js'
import { readTableName } from '../catalog/table-name.js'
import type { RowResult } from '../row-call.js'
import type { Rows } from '../row-executor.js'
import { type RowId, readId } from '../row-id.js'
import { type RowOptions, rowOptions } from '../row-options.js'
import { expectMoved, type StateChange } from '../rows/transition.js'
import { RowArgs } from '../sql-values.js'
import type { AggregateCall } from './aggregate-call.js'
import type { AggregateSpec } from './aggregate-spec.js'
import { AggregateSql } from './aggregate-sql.js'
import { viewSql } from './aggregate-view.js'
import { checkExpressions } from './check-expressions.js'
import {
  type CountedTransitionOptions,
  countedTransition,
  readCountedTransition,
} from './counted-transition.js'
import { type AggregateRefresh, refreshMarked } from './refresh-marked.js'
import { type AggregateReport, type VerifyOptions, verifyAggregate } from './verify-aggregate.js'

/** The longest wait for a locked table when the expressions are checked. */
const WAIT_MS = 1_000

/** The limit for one call. Recompute or mark more parents in parts. */
const MAX_IDS = 10_000

/** SQLSTATEs that mean that a table has changed since it was read. */
const TABLE_CHANGED = new Set(['42P01', '42703', '42883', '42804', '42846'])

/** The SQLSTATE that `aggregate_require_full_visibility` raises. */
const ROWS_HIDDEN = '42D01'

/** Options of `recompute`. In your transaction (`tx`), the count includes what that transaction has written. */
export type RecomputeOptions = RowOptions

export interface DerivedOptions extends RowOptions {
  /** False: only return the SQL, for your own migration. Default true. */
  readonly create?: boolean | undefined
}

export const derivedOptions = optionTable<DerivedOptions>()('aggregate.derived', {
  ...rowOptions.fields,
  create: boolean({ default: true }),
})

export interface MarkDirtyOptions {
  /** Your own open transaction. The mark takes effect when it commits. */
  readonly tx?: Tx | undefined
}

export const markDirtyOptions = optionTable<MarkDirtyOptions>()('aggregate.markDirty', { tx: unchecked() })

export interface RefreshOptions {
  /** Ends the run after the current batch. */
  readonly signal?: AbortSignal | undefined
}

export const refreshOptions = optionTable<RefreshOptions>()('aggregate.refresh', { signal: abortSignal() })

/** Inserts no mark if the parent table no longer exists. */
const mark = statement(
  `with marked as (
    insert into {schema}.aggregate_mark (aggregate, parent, id)
    select $1::text, pg_catalog.to_regclass($2::text)::pg_catalog.oid, i.id from pg_catalog.unnest($3::text::text[]) i(id)
    where pg_catalog.to_regclass($2::text) is not null returning 1)
  select pg_catalog.count(*)::text as count from marked`,
)
const makeView = statement(
  'select {schema}.aggregate_create_view($1::text, $2::text, $3::text, $4::text::integer)::text as state',
)

/**
 * Counts and sums that a parent row keeps of its children. Each count derives all values from the children, never from the previous values. Only `transition`
 * adds to the stored values.
 *
 * @example
 * const totals = dibs.aggregate('order-totals', {
 *   parent: 'orders',
 *   child: 'order_line',
 *   foreignKey: 'order_id',
 *   columns: { lines: 'count(*)', total: 'coalesce(sum(price), 0)' },
 * })
 * await dibs.transaction(async (tx) => {
 *   await tx.query('insert into order_line (order_id, price) values ($1, 12)', [id])
 *   await totals.recompute(id, { tx })
 * })
 */
export class Aggregate<R extends object = Row> {
  readonly name: string
  readonly #rows: Rows
  readonly #spec: AggregateSpec
  /** The versions of both tables on which the expressions were checked: the fingerprint of each table. */
  readonly #checked = new Set<string>()

  constructor(rows: Rows, spec: AggregateSpec) {
    this.name = spec.name
    this.#rows = rows
    this.#spec = spec
  }

  /**
   * Locks the parent, and then counts its children. If several callers do so at once, the last one counts what all of them have written. Returns the parent
   * after the write; for several ids, the parents in the order of `ids`. Parents are locked in the order of their key.
   *
   * Throws `NotFoundError` if a parent does not exist, and `BusyError` if a parent could not be locked in time. Throws `NotWrittenError` if a trigger changed
   * what was written. In each case no parent is written, and your transaction stays usable.
   *
   * @example
   * const order = await totals.recompute(7)
   * const [from, to] = await totals.recompute([7, 8])
   * console.log(order, from, to)
   */
  recompute(id: RowId, options?: RecomputeOptions): Promise<R>
  recompute(ids: readonly RowId[], options?: RecomputeOptions): Promise<R[]>
  async recompute(given: RowId | readonly RowId[], options?: RecomputeOptions): Promise<R | R[]> {
    const { tx, waitMs } = rowOptions.read(options)
    const ids = toList(given)
    const results = await this.#call(
      tx,
      (sql) => {
        const { lock, recompute } = ids.length === 1 ? sql.forSingleId : sql
        const args = new RowArgs()
        for (const id of ids) args.place(toIdText(sql.parent, id), 'pg_catalog.text')
        return {
          name: 'aggregate_recompute',
          statements: [lock, recompute, '', sql.lockers],
          ...{ args, rest: ['1'], waitMs },
        }
      },
      waitMs,
    )
    this.#expectAll(results, ids)
    const found = results.map(({ row }) => row as R)
    return Array.isArray(given) ? found : (found[0] as R)
  }

  /**
   * Marks parents whose children have changed. The next round of maintenance recomputes them: of each 10,000 marks, those of one parent cost one count. Callers
   * never wait for each other, so `markDirty` suits parents that many callers write to.
   *
   * In your transaction (`tx`), a mark takes effect when that transaction commits; without `tx`, at once. Marking needs no rights on the tables. An error in an
   * expression is reported only when the parent is recomputed.
   *
   * @example
   * await dibs.transaction(async (tx) => {
   *   await tx.query('insert into order_line (order_id, price) values ($1, 12)', [id])
   *   await totals.markDirty(id, { tx })
   * })
   */
  async markDirty(given: RowId | readonly RowId[], options?: MarkDirtyOptions): Promise<void> {
    const { tx } = markDirtyOptions.read(options)
    const ids = toList(given)
    await this.#retry(async () => {
      // Checking the expressions needs rights on both tables, and a caller that only marks may not have them.
      const { parent } = await this.#read(tx)
      const texts = new Set(ids.map((id) => toIdText(parent, id)))
      const values = [this.name, parent.quoted, textArray([...texts])]
      const [marked] = await this.#rows.send(mark, values, tx)
      if (marked?.count === '0')
        throw new InvalidInputError('parent', `names ${this.#spec.parent}, which no longer exists`)
      return []
    })
  }

  /**
   * Recomputes the parents that are marked now. Maintenance does this automatically. Parents that others have locked are left for the next time.
   *
   * @example
   * const { recomputed } = await totals.refresh()
   */
  refresh(options?: RefreshOptions): Promise<AggregateRefresh> {
    const { signal } = refreshOptions.read(options)
    return refreshMarked(this.#spec, this.#rows, this.#call, signal)
  }

  /**
   * Finds parents whose totals differ from their children, because a child was written and not counted. Works in short batches while others write. With
   * `repair`, these parents are recomputed.
   *
   * A parent that is marked, or is just being written, does not count as wrong. A parent that cannot be compared or repaired is reported, and does not stop the
   * others.
   *
   * @example
   * const { drifted } = await totals.verify({ repair: true })
   * for (const { id, columns } of drifted) console.warn(`order ${id} was wrong`, columns)
   */
  verify(options?: VerifyOptions): Promise<AggregateReport> {
    return verifyAggregate(this.name, this.#rows, this.#call, options)
  }

  /**
   * Moves a child from one state to another, as `dibs.rows.transition` does, and adds to its parent in the same statement. Of
   * several concurrent callers, one does both, and the others do neither. `transition` counts no children. All other writers of
   * children must adjust the parent too, so run `verify` now and then.
   *
   * @example
   * await totals.transition(lineId, { from: 'open', to: 'shipped' }, { add: { open_lines: -1, shipped_lines: 1 } })
   */
  async transition<C extends object = Row>(
    id: RowId,
    step: StateChange,
    options: CountedTransitionOptions,
  ): Promise<C> {
    const change = readCountedTransition(step, options)
    const { parent: name, child: table } = this.#spec
    const results = await this.#retry(async () => {
      const parent = await this.#rows.table(change.tx, 'parent', name)
      return this.#rows.call(change.tx, table, (child) =>
        countedTransition(new AggregateSql(parent, child, this.#spec, this.#rows.schema), id, change),
      )
    })
    if (results[0]?.state === 'unwritten')
      throw new NotWrittenError(`the parent of ${describeRow(table, id)}`, name, idToJson(id))
    return expectMoved(results, table, id, change) as C
  }

  /**
   * Creates a view with all columns of the parent, which counts the children at each read, so that the totals cannot be wrong. Use it for totals that are
   * rarely read, or for parents with few children. The parent does not need the columns of the totals.
   *
   * Returns the SQL of the view. Call `derived` again after a column was added to the parent. After any other change, drop the old view first
   * (`InvalidInputError`).
   *
   * @example
   * await totals.derived('order_totals')
   * await pool.query('select total from order_totals where id = $1', [id])
   */
  async derived(view: string, options?: DerivedOptions): Promise<string> {
    const { tx, create, waitMs } = derivedOptions.read(options)
    const { quoted } = readTableName(view, 'view')
    // Read both tables again: the view must have the columns that they have now.
    this.#forget()
    const sql = await this.#prepare(tx, false, waitMs)
    const { create: text, like } = viewSql(sql, quoted, this.#rows.hasInvokerViews)
    if (!create) return text
    const startedAt = performance.now()
    const [row] = await this.#rows
      .send(makeView, [text, like, quoted, String(Math.max(1, waitMs))], tx)
      .catch((error) => {
        if (!hasWaitedInVain(error)) throw error
        const waitedMs = waitMs === 0 ? 0 : performance.now() - startedAt
        throw new BusyError(`view "${view}", to make it`, waitedMs, 100, {
          cause: error,
        })
      })
    if (row?.state !== 'made')
      throw new InvalidInputError(
        'view',
        `names ${view}, which exists and cannot be replaced by this view: PostgreSQL answered ${row?.state?.replace(' ', ': ')}. Drop it and what depends on it, or choose another name`,
      )
    return text
  }

  /** Reads both tables, unless they are cached, and checks the declaration against them. */
  async #prepare(tx: Tx | undefined, isStored: boolean, waitMs = WAIT_MS): Promise<AggregateSql> {
    const { parent, child, sql } = await this.#read(tx)
    const version = `${isStored} ${parent.fingerprint} ${child.fingerprint}`
    if (!this.#checked.has(version)) {
      await checkExpressions(this.#rows, tx, sql, isStored, waitMs)
      this.#checked.add(version)
    }
    return sql
  }

  /** Reads both tables, unless they are cached, and checks only what needs no rights on them. */
  async #read(tx: Tx | undefined) {
    const parent = await this.#rows.table(tx, 'parent', this.#spec.parent)
    const child = await this.#rows.table(tx, 'child', this.#spec.child)
    return { parent, child, sql: new AggregateSql(parent, child, this.#spec, this.#rows.schema) }
  }

  readonly #call: AggregateCall = (tx, build, waitMs) =>
    this.#retry(async () => {
      await this.#prepare(tx, true, Math.min(waitMs ?? WAIT_MS, WAIT_MS))
      const child = await this.#rows.table(tx, 'child', this.#spec.child)
      return this.#rows.call(tx, this.#spec.parent, (parent) =>
        build(new AggregateSql(parent, child, this.#spec, this.#rows.schema)),
      )
    }).catch((error) => {
      if (!(error instanceof DatabaseError && error.sqlState === ROWS_HIDDEN)) throw error
      throw new InvalidInputError(
        'child',
        `names ${this.#spec.child}, whose row level security applies to this role: it may hide rows, and they would be missing in what is counted. Count as the owner of the table, or as a role with BYPASSRLS`,
        { cause: error },
      )
    })

  /**
   * Tries once more with both tables read again. `Rows` refreshes only the table that it writes to. Input that was refused may be valid by now, and a name that
   * the server does not know may belong to the other table.
   */
  async #retry(call: () => Promise<readonly RowResult[]>): Promise<readonly RowResult[]> {
    try {
      return await call()
    } catch (error) {
      const mayBeOld =
        error instanceof DatabaseError
          ? TABLE_CHANGED.has(error.sqlState)
          : error instanceof InvalidInputError
      if (!mayBeOld) throw error
      this.#forget()
      this.#checked.clear()
      return await call()
    }
  }

  #forget(): void {
    this.#rows.forget(this.#spec.parent)
    this.#rows.forget(this.#spec.child)
  }

  #expectAll(results: readonly RowResult[], ids: readonly RowId[]): void {
    const { parent } = this.#spec
    const isAbsent = results[0]?.state === 'absent'
    const places = new Set(
      isAbsent ? (JSON.parse(results[0]?.detail ?? 'null') ?? []) : results.map((row) => row.detail),
    )
    const [first, ...more] = ids.filter((_, n) => !places.has(String(n + 1)))
    if (first === undefined) return
    const subject =
      more.length === 0 ? describeRow(parent, first) : `${more.length + 1} rows of table "${parent}"`
    const which = more.length === 0 ? idToJson(first) : [first, ...more].map(idToJson)
    if (isAbsent) throw new NotFoundError(subject, parent, which)
    throw new NotWrittenError(subject, parent, which)
  }
}

trackJoinedMethods(Aggregate, 'aggregate', { recompute: 1, markDirty: 1, transition: 2, derived: 1 })

function toList(given: RowId | readonly RowId[]): readonly RowId[] {
  const ids: readonly RowId[] = Array.isArray(given) ? given : [given as RowId]
  if (ids.length > 0 && ids.length <= MAX_IDS) return ids
  throw new InvalidInputError('ids', `must be 1 to ${MAX_IDS}, not ${ids.length}`)
}

/** Encodes an id for our statements; see `AggregateSql`. */
function toIdText(parent: Table, id: RowId): string {
  const parts = readId('id', parent, id)
  const isKey = parts.length === parent.key.length && parts.every(({ column }, n) => column === parent.key[n])
  if (!isKey)
    throw new InvalidInputError(
      'id',
      `must name the columns of the primary key of ${parent.name.input}: ${parent.key.map(({ name }) => name).join(', ')}`,
    )
  return JSON.stringify(parts.map(({ field, column, value }) => toColumnText(field, column, value)))
}
