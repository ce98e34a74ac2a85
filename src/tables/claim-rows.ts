import { InvalidInputError } from '../errors.js'
import { checkDuration } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Row } from '../postgres/executor.js'
import { checkKey } from '../postgres/key.js'
import { showGiven } from '../postgres/name-given.js'
import { checkPatch, ROW, RowArgs, type RowPatch, type Taken, writable } from '../postgres/rows/row-args.js'
import { keyTaken } from '../postgres/rows/row-id.js'
import { checkWait, type RowCall, type RowOptions, type Rows } from '../postgres/rows/rows.js'
import type { Column, Table } from '../postgres/rows/table.js'
import { countUp, leaseColumn, wholeColumn } from './claim-columns.js'
import { type ClaimOrder, readOrder } from './claim-order.js'
import { type ClaimWhere, readWhere } from './claim-where.js'

const MAX_LIMIT = 1_000
const LEASE_MS = 60_000

export interface ClaimRowsOptions extends RowOptions {
  /** Which rows may be claimed. Default: all. */
  readonly where?: ClaimWhere | undefined
  /** The order in which rows are claimed. The primary key breaks ties. */
  readonly order?: ClaimOrder | undefined
  /** How many rows to claim at most: 1 to 1,000. Default 1. */
  readonly limit?: number | undefined
  /** Columns to write into each claimed row. */
  readonly set?: RowPatch | undefined
  /**
   * A `timestamptz` column that holds the end of a claim. Only rows in which it is null or in the past, by the database's clock, are claimed. So rows of a
   * process that died can be claimed again.
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

const names: readonly (keyof ClaimRowsOptions)[] = [
  ...(['where', 'order', 'limit', 'set', 'leaseColumn', 'leaseMs', 'fenceColumn'] as const),
  ...(['holderColumn', 'holder', 'attemptsColumn', 'tx', 'waitMs'] as const),
]

export function claimRowsOn(rows: Rows): ClaimRows {
  return async <R extends object>(table: string, options: ClaimRowsOptions = {}) => {
    checkOptions(options, names)
    const { limit = 1, leaseMs = LEASE_MS, leaseColumn, holder, holderColumn } = options
    if (!Number.isSafeInteger(limit) || limit < 1 || limit > MAX_LIMIT)
      throw new InvalidInputError(
        'limit',
        `must be a whole number from 1 to ${MAX_LIMIT}, not ${showGiven(limit)}`,
      )
    checkDuration('leaseMs', leaseMs)
    if (options.leaseMs !== undefined && leaseColumn === undefined)
      throw new InvalidInputError('leaseMs', 'needs `leaseColumn`')
    if ((holder === undefined) !== (holderColumn === undefined))
      throw new InvalidInputError(
        holder === undefined ? 'holder' : 'holderColumn',
        'must be given with the other of the two',
      )
    if (holder !== undefined) checkKey('holder', holder)
    const waitMs = checkWait(options.waitMs)
    const asked = { ...options, limit, leaseMs, schema: rows.schema, waitMs }
    const told = await rows.call(options.tx, table, (known) => claimCall(known, asked))
    return told.map(({ row }) => row) as R[]
  }
}

type Asked = ClaimRowsOptions & {
  readonly limit: number
  readonly leaseMs: number
  readonly waitMs: number
  readonly schema: string
}

/**
 * One statement picks, locks and writes. The pick is a materialized CTE, which runs once. As the inner side of a loop the pick could run again, and claim more
 * rows than `limit`. `$2` is the database's clock.
 */
function claimCall(table: Table, asked: Asked): RowCall {
  if (table.key.length === 0)
    throw new InvalidInputError(
      'table',
      `names ${table.name.given}, which has no primary key; rows are claimed by it`,
    )
  const args = new RowArgs()
  const conditions = readWhere(table, asked.where, args)
  const lease = asked.leaseColumn === undefined ? undefined : leaseColumn(table, asked.leaseColumn)
  if (lease) conditions.push(`(${lease.quoted} is null or ${lease.quoted} operator(pg_catalog.<=) $2)`)
  const where = conditions.length > 0 ? ` where ${conditions.join(' and ')}` : ''
  const order = [...readOrder(table, asked.order), ...table.key.map((column) => table.own(column))].join(', ')
  const rest = `${where} order by ${order} limit ${asked.limit} for no key update skip locked`
  const sets = readSets(table, asked, lease, args)
  const statements = [sets.length === 0 ? pickOnly(table, rest, asked) : pickAndWrite(table, rest, sets)]
  return { name: 'row_claim', statements, args, waitMs: asked.waitMs }
}

function pickOnly(table: Table, rest: string, { tx }: Asked): string {
  if (tx === undefined)
    throw new InvalidInputError(
      'set',
      'must be given, or `leaseColumn`, or `tx`: a claim that writes nothing lasts as long as its transaction',
    )
  return `select 'claimed'::text, null::text, ${table.list()} from ${table.quoted}${rest}`
}

function pickAndWrite(table: Table, rest: string, sets: readonly string[]): string {
  const { key, quoted } = table
  const [locked, placed, written] = ['dibs_l', 'dibs_p', 'dibs_w'].map((name) => table.partName(name))
  const picked = key.map((column, n) => `${column.quoted} as "dibs_${n}"`).join(', ')
  const match = key
    .map((column, n) => `${ROW}.${column.quoted} ${column.equals} ${placed}."dibs_${n}"::${column.cast}`)
    .join(' and ')
  const place = `"${table.freeName('dibs_place')}"`
  return `with ${locked} as materialized (select ${picked} from ${quoted}${rest}),
${placed} as materialized (select *, pg_catalog.row_number() over () as ${place} from ${locked}),
${written} as (update ${quoted} as ${ROW} set ${sets.join(', ')} from ${placed} where ${match} returning ${placed}.${place}, ${table.list(`${ROW}.`)})
select 'claimed'::text, null::text, ${table.list()} from ${written} order by ${written}.${place}`
}

/** Returns the assignments for each claimed row. */
function readSets(table: Table, asked: Asked, lease: Column | undefined, args: RowArgs): string[] {
  const sets: string[] = []
  const taken: Taken[] = [...keyTaken(table, [])]
  const add = (option: string, column: Column, value: string): void => {
    writable(option, table, column.name, taken)
    taken.push({ name: column.name, why: `it is what \`${option}\` says` })
    sets.push(`${column.quoted} = ${value}`)
  }
  const { fenceColumn, holderColumn, holder, attemptsColumn, schema, leaseMs } = asked
  if (lease)
    add(
      'leaseColumn',
      lease,
      `$2 operator(pg_catalog.+) ${args.place(`${leaseMs} milliseconds`, 'pg_catalog.interval')}`,
    )
  if (fenceColumn !== undefined) {
    const column = wholeColumn(table, 'fenceColumn', fenceColumn, ['int8'])
    add('fenceColumn', column, `${schema}.next_fence(coalesce(${ROW}.${column.quoted}, 0), $2)`)
  }
  if (holderColumn !== undefined) {
    const column = table.column('holderColumn', holderColumn)
    add('holderColumn', column, args.value('holder', column, holder))
  }
  if (attemptsColumn !== undefined) {
    const column = wholeColumn(table, 'attemptsColumn', attemptsColumn, ['int2', 'int4', 'int8'])
    add('attemptsColumn', column, countUp(column))
  }
  return [...sets, ...args.assign('set', table, checkPatch('set', asked.set ?? {}), taken)]
}
