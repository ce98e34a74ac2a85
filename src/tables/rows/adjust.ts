import { describeRow, idToJson } from '../../errors/describe-row.js'
import { InsufficientError, InvalidInputError } from '../../errors.js'
import { unchecked } from '../../options/option.js'
import { optionTable, type ReadOptions } from '../../options/option-table.js'
import type { Row, Tx } from '../../postgres/executor.js'
import { type Column, integerRanges, type Table } from '../catalog/table.js'
import type { RowCall } from '../row-call.js'
import type { Rows } from '../row-executor.js'
import { matchId, type RowId, readId, reservedByKey } from '../row-id.js'
import { expectRow, rowWrite } from '../row-write.js'
import { checkPatch, ROW, RowArgs } from '../sql-values.js'
import { compareDecimals, type Decimal, readDecimal, writeDecimal } from './decimal.js'
import { type CountedWriteOptions, countedWriteOptions, countWrite } from './version-column.js'

/** An exact amount: a safe integer, a bigint, or digits as a string (`'12.50'`). */
export type ExactAmount = number | bigint | string

/** Columns, and how much to add to each. A negative amount is subtracted. */
export type AmountChange = Readonly<Record<string, ExactAmount>>

export interface AdjustOptions extends CountedWriteOptions {
  /** The least that each column may hold afterwards. Default 0; `null` for no limit. */
  readonly min?: ExactAmount | null | undefined
  /** The most that each column may hold afterwards. Default: no limit. */
  readonly max?: ExactAmount | null | undefined
}

export const adjustOptions = optionTable<AdjustOptions>()('rows.adjust', {
  ...countedWriteOptions.fields,
  min: unchecked(), // by `readDecimal`
  max: unchecked(),
})

export type Adjust = <R extends object = Row>(
  table: string,
  id: RowId,
  change: AmountChange,
  options?: AdjustOptions,
) => Promise<R>

/** The checked arguments of `adjust`. */
interface Adjustment {
  readonly changes: readonly ColumnChange[]
  readonly min: Decimal | undefined
  readonly max: Decimal | undefined
  readonly counter: string | undefined
  readonly tx: Tx | undefined
  readonly waitMs: number
}

interface ColumnChange {
  readonly name: string
  readonly delta: Decimal
}

/** See `TableRows.adjust`. */
export function adjustOn(rows: Rows): Adjust {
  return async <R extends object>(
    table: string,
    id: RowId,
    change: AmountChange,
    options?: AdjustOptions,
  ) => {
    const adjustment = readAdjustment(change, adjustOptions.read(options))
    let columns: readonly AmountColumn[] = []
    const results = await rows.call(adjustment.tx, table, (known) => {
      columns = adjustment.changes.map(({ name }) => amountColumn(known, name, `change.${name}`))
      return adjustCall(known, id, adjustment, columns)
    })
    const found = expectRow(results, table, id)
    if (found.state === 'written') return found.row as R
    const [, place = '0', amount = ''] = /^(\d+):(.*)$/s.exec(found.detail ?? '') ?? []
    const current = amount === '' ? null : amount
    const { name = '', delta } = adjustment.changes[Number(place)] ?? {}
    throw new InsufficientError({
      ...{ subject: describeRow(table, id), table, id: idToJson(id), column: name },
      current,
      delta: `${delta?.text}`,
      min: adjustment.min?.text ?? null,
      max: adjustment.max?.text ?? null,
      reason: delta && explain(current, delta, adjustment, columns[Number(place)]),
    })
  }
}

function readAdjustment(
  change: unknown,
  {
    min = 0,
    max = null,
    versionColumn: counter,
    tx,
    waitMs,
  }: ReadOptions<AdjustOptions, typeof adjustOptions.fields>,
): Adjustment {
  const changes = Object.entries(checkPatch('change', change)).map(([name, given]) => {
    const delta = readDecimal(`change.${name}`, given)
    if (delta.units === 0n) throw new InvalidInputError(`change.${name}`, 'must not be 0')
    return { name, delta }
  })
  if (changes.length === 0) throw new InvalidInputError('change', 'must name at least one column')
  const least = min === null ? undefined : readDecimal('min', min)
  const most = max === null ? undefined : readDecimal('max', max)
  if (least && most && compareDecimals(least, most) > 0)
    throw new InvalidInputError('min', `must not be more than \`max\`: ${least.text} > ${most.text}`)
  return { changes, min: least, max: most, counter, tx, waitMs }
}

/** Returns why a sum does not fit, or undefined if the caller's own bounds are the reason. */
function explain(
  current: string | null,
  delta: Decimal,
  { min, max }: Adjustment,
  column?: AmountColumn,
): string | undefined {
  if (current === null) return 'Nothing can be added to null.'
  if (/[a-z]/i.test(current)) return 'Nothing can be added to a value that is not a finite number.'
  // `readDecimal` accepts no longer exponents.
  if (current.length > 400) return undefined
  const now = readDecimal('current', current)
  const places = Math.max(now.places, delta.places)
  const [one, other] = [now, delta].map(({ units, places: own }) => units * 10n ** BigInt(places - own))
  const sum = readDecimal('sum', writeDecimal((one ?? 0n) + (other ?? 0n), places))
  if ((min && compareDecimals(sum, min) < 0) || (max && compareDecimals(sum, max) > 0)) return undefined
  return column?.most && `The column holds ${column.least} to ${column.most}.`
}

/** Sums are computed as `numeric`, which does not overflow. A sum is written back only if it fits the column. */
function adjustCall(
  table: Table,
  id: RowId,
  { changes, min, max, counter, waitMs }: Adjustment,
  columns: readonly AmountColumn[],
): RowCall {
  const parts = readId('id', table, id)
  const keys = new Set([...table.primary, ...parts.map((part) => part.column)].map(({ name }) => name))
  const reserved = changes.map(({ name }) => ({ name, why: 'this call adjusts it' }))
  const counted = countWrite(table, counter, [...reservedByKey(table, parts), ...reserved])
  const args = new RowArgs()
  const match = matchId(parts, args)
  const numeric = 'pg_catalog.numeric'
  const sums = columns.map((column, n) => {
    const { name, delta } = changes[n] as ColumnChange
    checkDelta(`change.${name}`, delta, column)
    if (keys.has(name))
      throw new InvalidInputError(`change.${name}`, 'must not be given: this column identifies the row')
    const sum = `(${ROW}.${column.quoted}::${numeric} operator(pg_catalog.+) ${args.place(delta.text, numeric)})`
    const bound = (operator: string) => (text: string | undefined) =>
      text && `${sum} operator(pg_catalog.${operator}) ${args.place(text, numeric)}`
    // Each column always has a bound, so that null never fits. PostgreSQL sorts NaN above all numbers. A sum with an infinity hides what was added.
    const finite = `${sum} operator(pg_catalog.>) '-Infinity'::${numeric} and ${sum} operator(pg_catalog.<) 'Infinity'::${numeric}`
    const fits = [
      ...[min?.text, column.least].map(bound('>=')),
      ...[max?.text, column.most].map(bound('<=')),
      column.most === undefined ? finite : undefined,
    ].filter(Boolean)
    return { column, set: `${column.quoted} = ${sum}::${column.sql}`, fits: fits.join(' and ') }
  })
  const fits = sums.map((one) => one.fits).join(' and ')
  // Reports the first column that does not fit, and its current value.
  const refused = sums.map(
    (one, n) =>
      `when not coalesce(${one.fits}, false) then pg_catalog.concat('${n}:', ${ROW}.${one.column.quoted}::pg_catalog.text)`,
  )
  return rowWrite({
    ...{ table, args, match, waitMs },
    write: `update ${table.quoted} as ${ROW} set ${[...sums.map(({ set }) => set), ...counted.sets].join(', ')} where ${match} and ${fits}`, // guard: rows.adjust-bounds
    detail: `case ${refused.join(' ')} end`,
    again: `coalesce(${fits}, false)`,
  })
}

/** Checks that the column can store the amount without rounding. */
export function checkDelta(field: string, delta: Decimal, { name, places, zeros }: AmountColumn): void {
  if (delta.places > places)
    throw new InvalidInputError(
      field,
      `must have at most ${places} digits behind the point, as column "${name}" has, and is ${delta.text}`,
    )
  if (delta.units % 10n ** BigInt(zeros) !== 0n)
    throw new InvalidInputError(
      field,
      `must be a multiple of ${10n ** BigInt(zeros)}, as column "${name}" rounds to that, and is ${delta.text}`,
    )
}

export interface AmountColumn extends Column {
  /** How many digits the column keeps after the decimal point. */
  readonly places: number
  /** How many digits before the decimal point the column rounds, as `numeric(4, -2)` does. */
  readonly zeros: number
  /** The smallest value that the column's type can hold; `most` is the largest. */
  readonly least?: string
  readonly most?: string
}

export function amountColumn(table: Table, name: string, field = 'column'): AmountColumn {
  const column = table.column(field, name)
  if (column.isGenerated) throw new InvalidInputError(field, `names "${name}", which the database makes`)
  const { base = '', precision, scale = 0 } = column
  const range = base === 'oid' ? undefined : integerRanges[base]
  if (range) return { ...column, places: 0, zeros: 0, least: `${range[0]}`, most: `${range[1]}` }
  if (base !== 'numeric')
    throw new InvalidInputError(
      field,
      `must hold exact numbers (smallint, integer, bigint, numeric), and "${name}" is ${column.sql}`,
    )
  if (precision === undefined) return { ...column, places: Number.POSITIVE_INFINITY, zeros: 0 }
  const most = 10n ** BigInt(precision) - 1n
  const text = scale >= 0 ? writeDecimal(most, scale) : `${most * 10n ** BigInt(-scale)}`
  return { ...column, places: Math.max(0, scale), zeros: Math.max(0, -scale), least: `-${text}`, most: text }
}
