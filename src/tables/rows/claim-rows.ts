import { InvalidInputError } from '../../errors.js'
import { duration, wholeNumber } from '../../options/number-options.js'
import { checked, unchecked } from '../../options/option.js'
import { optionTable, type ReadOptions } from '../../options/option-table.js'
import { string } from '../../options/value-options.js'
import type { Row } from '../../postgres/executor.js'
import { checkKey } from '../../postgres/key.js'
import type { Column, Table } from '../catalog/table.js'
import { OptionAssignments } from '../option-assignments.js'
import type { RowCall } from '../row-call.js'
import type { Rows } from '../row-executor.js'
import { type RowOptions, rowOptions } from '../row-options.js'
import { checkPatch, ROW, RowArgs, type RowPatch } from '../sql-values.js'
import { countUp, leaseColumn, wholeColumn } from './claim-columns.js'
import { type ClaimOrder, readOrder } from './claim-order.js'
import { type ClaimWhere, readWhere } from './claim-where.js'

const MAX_LIMIT = 1_000

export interface ClaimRowsOptions extends RowOptions {
  /** The rows that may be claimed. Default: all. */
  readonly where?: ClaimWhere | undefined
  /** The order in which rows are claimed. The primary key breaks ties. */
  readonly order?: ClaimOrder | undefined
  /** How many rows to claim at most: 1 to 1,000. Default 1. */
  readonly limit?: number | undefined
  /** Columns to write into each claimed row. */
  readonly set?: RowPatch | undefined
  /**
   * A `timestamptz` column that holds the end of a claim. Only rows in which it is null or in the past, by the database's
   * clock, are claimed. This makes rows of a dead process available again.
   */
  readonly leaseColumn?: string | undefined
  /** How long a claim lasts. Needs `leaseColumn`. Default 60,000. */
  readonly leaseMs?: number | undefined
  /** A `bigint` column that grows with each claim. Compare it in later writes: then writes of a lost claim change nothing. */
  readonly fenceColumn?: string | undefined
  /** The column that stores `holder`. */
  readonly holderColumn?: string | undefined
  /** Names the caller that claims. Needs `holderColumn`. */
  readonly holder?: string | undefined
  /** A column of whole numbers that counts the claims. */
  readonly attemptsColumn?: string | undefined
}

export type ClaimRows = <R extends object = Row>(table: string, options?: ClaimRowsOptions) => Promise<R[]>

export const claimRowsOptions = optionTable<ClaimRowsOptions>()('rows.claim', {
  ...rowOptions.fields,
  where: unchecked(), // by `readWhere`, which needs the table
  order: unchecked(), // by `readOrder`
  limit: wholeNumber({ default: 1, max: MAX_LIMIT }),
  set: checked(checkPatch, { default: {} }),
  leaseColumn: string(),
  leaseMs: duration({ default: 60_000 }),
  fenceColumn: string(),
  holderColumn: string(),
  holder: checked(checkKey),
  attemptsColumn: string(),
})

export function claimRowsOn(rows: Rows): ClaimRows {
  return async <R extends object>(table: string, options?: ClaimRowsOptions) => {
    const read = claimRowsOptions.read(options)
    const { tx, leaseColumn, holder, holderColumn } = read
    if (options?.leaseMs !== undefined && leaseColumn === undefined)
      throw new InvalidInputError('leaseMs', 'needs `leaseColumn`')
    if ((holder === undefined) !== (holderColumn === undefined))
      throw new InvalidInputError(
        holder === undefined ? 'holder' : 'holderColumn',
        'must be given with the other of the two',
      )
    const results = await rows.call(tx, table, (known) => claimCall(known, read, rows.schema))
    return results.map(({ row }) => row) as R[]
  }
}

type ReadClaimOptions = ReadOptions<ClaimRowsOptions, typeof claimRowsOptions.fields>

/**
 * Picks, locks and writes in one statement. The pick is a materialized CTE, which runs once. As the inner side of a loop the
 * pick could run again, and claim more rows than `limit`. `$2` is the database's clock.
 */
function claimCall(table: Table, options: ReadClaimOptions, schema: string): RowCall {
  if (table.key.length === 0)
    throw new InvalidInputError(
      'table',
      `names ${table.name.input}, which has no primary key. A claim identifies rows by their primary key`,
    )
  const args = new RowArgs()
  const conditions = readWhere(table, options.where, args)
  const lease = options.leaseColumn === undefined ? undefined : leaseColumn(table, options.leaseColumn)
  // guard: rows.claim-lease
  if (lease) conditions.push(`(${lease.quoted} is null or ${lease.quoted} operator(pg_catalog.<=) $2)`)
  const where = conditions.length > 0 ? ` where ${conditions.join(' and ')}` : ''
  const order = [
    ...readOrder(table, options.order),
    ...table.key.map((column) => table.qualify(column)),
  ].join(', ')
  const rest = `${where} order by ${order} limit ${options.limit} for no key update skip locked` // guard: rows.claim-skip-locked, rows.claim-lock
  const sets = readSets(table, options, schema, lease, args)
  const statements = [sets.length === 0 ? pickOnly(table, rest, options) : pickAndWrite(table, rest, sets)]
  return { name: 'row_claim', statements, args, waitMs: options.waitMs }
}

function pickOnly(table: Table, rest: string, { tx }: ReadClaimOptions): string {
  if (tx === undefined)
    throw new InvalidInputError(
      'set',
      'must be given, or `leaseColumn`, or `tx`: a claim that writes nothing lasts as long as its transaction',
    )
  return `select 'claimed'::text, null::text, ${table.list()} from ${table.quoted}${rest}`
}

function pickAndWrite(table: Table, rest: string, sets: readonly string[]): string {
  const { key, quoted } = table
  const [locked, placed, written] = ['dibs_l', 'dibs_p', 'dibs_w'].map((name) => table.alias(name))
  const picked = key.map((column, n) => `${column.quoted} as "dibs_${n}"`).join(', ')
  const match = key
    .map((column, n) => `${ROW}.${column.quoted} ${column.equals} ${placed}."dibs_${n}"::${column.cast}`)
    .join(' and ')
  const place = `"${table.unusedName('dibs_place')}"`
  return `with ${locked} as materialized (select ${picked} from ${quoted}${rest}),
${placed} as materialized (select *, pg_catalog.row_number() over () as ${place} from ${locked}),
${written} as (update ${quoted} as ${ROW} set ${sets.join(', ')} from ${placed} where ${match} returning ${placed}.${place}, ${table.list(`${ROW}.`)})
select 'claimed'::text, null::text, ${table.list()} from ${written} order by ${written}.${place}`
}

/** Returns the assignments for each claimed row. */
function readSets(
  table: Table,
  options: ReadClaimOptions,
  schema: string,
  lease: Column | undefined,
  args: RowArgs,
): string[] {
  const sets = new OptionAssignments(table)
  const { fenceColumn, holderColumn, holder, attemptsColumn, leaseMs } = options
  if (lease)
    sets.add(
      'leaseColumn',
      lease,
      `$2 operator(pg_catalog.+) ${args.place(`${leaseMs} milliseconds`, 'pg_catalog.interval')}`,
    )
  if (fenceColumn !== undefined) {
    const column = wholeColumn(table, 'fenceColumn', fenceColumn, ['int8'])
    sets.add('fenceColumn', column, `${schema}.next_fence(coalesce(${ROW}.${column.quoted}, 0), $2)`) // guard: rows.claim-fence
  }
  if (holderColumn !== undefined) {
    const column = table.column('holderColumn', holderColumn)
    sets.add('holderColumn', column, args.value('holder', column, holder))
  }
  if (attemptsColumn !== undefined) {
    const column = wholeColumn(table, 'attemptsColumn', attemptsColumn, ['int2', 'int4', 'int8'])
    sets.add('attemptsColumn', column, countUp(column))
  }
  return sets.with('set', options.set, args)
}
