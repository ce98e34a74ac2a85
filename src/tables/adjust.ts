import { InsufficientError, InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Row, Tx } from '../postgres/executor.js'
import { ROW, RowArgs } from '../postgres/rows/row-args.js'
import { keyTaken, matchId, nameRow, type RowId, readId, showId } from '../postgres/rows/row-id.js'
import { checkWait, expectRow, type RowCall, type Rows, rowWrite } from '../postgres/rows/rows.js'
import { type Column, integerRanges, type Table } from '../postgres/rows/table.js'
import { type CountedWriteOptions, countWrite } from '../postgres/rows/version-column.js'
import { compareDecimals, type Decimal, readDecimal, writeDecimal } from './decimal.js'

/** An amount, exactly: a safe integer, a bigint, or digits as text (`'12.50'`). */
export type ExactAmount = number | bigint | string

export interface AdjustOptions extends CountedWriteOptions {
  /** The least that may be left. Default 0; `null` for no limit. */
  readonly min?: ExactAmount | null | undefined
  /** The most that may be there. Default: none. */
  readonly max?: ExactAmount | null | undefined
}

export type Adjust = <R extends object = Row>(
  tx: Tx | undefined,
  table: string,
  id: RowId,
  column: string,
  delta: ExactAmount,
  options?: AdjustOptions,
) => Promise<R>

interface Asked {
  readonly column: string
  readonly delta: Decimal
  readonly min: Decimal | undefined
  readonly max: Decimal | undefined
  readonly counter: string | undefined
  readonly waitMs: number
}

export function adjustOn(rows: Rows): Adjust {
  return async <R extends object>(
    tx: Tx | undefined,
    table: string,
    id: RowId,
    column: string,
    delta: ExactAmount,
    options: AdjustOptions = {},
  ) => {
    checkOptions(options, ['min', 'max', 'versionColumn', 'waitMs'])
    const asked = readAsked(column, delta, options)
    let holds: AmountColumn | undefined
    const told = await rows.call(tx, table, (known) => {
      holds = amountColumn(known, column)
      return adjustCall(known, id, asked, holds)
    })
    const found = expectRow(told, table, id)
    if (found.state === 'written') return found.row as R
    throw new InsufficientError({
      ...{ subject: nameRow(table, id), table, id: showId(id), column },
      current: found.told,
      delta: asked.delta.text,
      min: asked.min?.text ?? null,
      max: asked.max?.text ?? null,
      reason: explain(found.told, asked, holds),
    })
  }
}

function readAsked(column: string, delta: unknown, options: AdjustOptions): Asked {
  const { min = 0, max = null, versionColumn: counter, waitMs } = options
  const by = readDecimal('delta', delta)
  if (by.units === 0n) throw new InvalidInputError('delta', 'must not be 0')
  const least = min === null ? undefined : readDecimal('min', min)
  const most = max === null ? undefined : readDecimal('max', max)
  if (least && most && compareDecimals(least, most) > 0)
    throw new InvalidInputError('min', `must not be more than \`max\`: ${least.text} > ${most.text}`)
  return { column, delta: by, min: least, max: most, counter, waitMs: checkWait(waitMs) }
}

/** Why a sum does not fit, if not by the caller's own bounds. */
function explain(
  current: string | null,
  { delta, min, max }: Asked,
  column?: AmountColumn,
): string | undefined {
  if (current === null) return 'Nothing can be added to null.'
  if (/[a-z]/i.test(current)) return 'Nothing can be added to what is no finite number.'
  // More digits are not read here.
  if (current.length > 400) return undefined
  const now = readDecimal('current', current)
  const places = Math.max(now.places, delta.places)
  const [one, other] = [now, delta].map(({ units, places: own }) => units * 10n ** BigInt(places - own))
  const sum = readDecimal('sum', writeDecimal((one ?? 0n) + (other ?? 0n), places))
  if ((min && compareDecimals(sum, min) < 0) || (max && compareDecimals(sum, max) > 0)) return undefined
  return column?.most && `The column holds ${column.least} to ${column.most}.`
}

/** Sums are made in `numeric`, which does not overflow, and go back into the column only if they fit. */
function adjustCall(
  table: Table,
  id: RowId,
  { column: name, delta, min, max, counter, waitMs }: Asked,
  column: AmountColumn,
): RowCall {
  checkDelta('delta', delta, column)
  const parts = readId('id', table, id)
  if ([...table.primary, ...parts.map((part) => part.column)].some((key) => key.name === name))
    throw new InvalidInputError('column', `names "${name}", which says which row it is`)
  const counted = countWrite(table, counter, [
    ...keyTaken(table, parts),
    { name, why: 'it is what is adjusted' },
  ])
  const args = new RowArgs()
  const match = matchId(parts, args)
  const numeric = 'pg_catalog.numeric'
  const sum = `(${ROW}.${column.quoted}::${numeric} operator(pg_catalog.+) ${args.place(delta.text, numeric)})`
  const bounds = [
    ...[min?.text, column.least].map(
      (text) => text && `${sum} operator(pg_catalog.>=) ${args.place(text, numeric)}`,
    ),
    ...[max?.text, column.most].map(
      (text) => text && `${sum} operator(pg_catalog.<=) ${args.place(text, numeric)}`,
    ),
  ].filter(Boolean)
  // There is a bound in any case, so that null never fits. NaN counts as more than any number, and with an infinity no sum says what was added.
  const finite = `${sum} operator(pg_catalog.>) '-Infinity'::${numeric} and ${sum} operator(pg_catalog.<) 'Infinity'::${numeric}`
  const fits = [...bounds, ...(column.most === undefined ? [finite] : [])].join(' and ')
  return rowWrite({
    ...{ table, args, match, waitMs },
    write: `update ${table.quoted} as ${ROW} set ${[`${column.quoted} = ${sum}::${column.sql}`, ...counted.sets].join(', ')} where ${match} and ${fits}`,
    told: `${ROW}.${column.quoted}`,
    again: `coalesce(${fits}, false)`,
  })
}

/** The column keeps all of it. */
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
  /** How many digits it keeps behind the point. */
  readonly places: number
  /** How many digits before the point it rounds away, as `numeric(4, -2)` does. */
  readonly zeros: number
  /** What its type can hold. */
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
