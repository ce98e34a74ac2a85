import { ConflictError, InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Row } from '../postgres/executor.js'
import { nameGiven } from '../postgres/name-given.js'
import { isPlain, ROW, RowArgs, type RowPatch } from '../postgres/rows/row-args.js'
import { keyTaken, matchId, nameRow, type RowId, readId } from '../postgres/rows/row-id.js'
import {
  checkWait,
  expectRow,
  type RowCall,
  type RowOptions,
  type Rows,
  rowWrite,
} from '../postgres/rows/rows.js'
import { type Column, integerRanges, type Table } from '../postgres/rows/table.js'
import { growVersion } from '../postgres/rows/version-column.js'

/** A row, and the version that the caller has read. */
export interface VersionedId {
  readonly id: RowId
  readonly version: number | bigint | string
}

export interface UpdateRowOptions extends RowOptions {
  /** The column that counts the writes: a whole number, not null. Default `version`. */
  readonly versionColumn?: string | undefined
}

export type UpdateRow = <R extends object = Row>(
  table: string,
  at: VersionedId,
  patch: RowPatch,
  options?: UpdateRowOptions,
) => Promise<R>

/** See `TableRows.update`. */
export function updateRowOn(rows: Rows): UpdateRow {
  return async <R extends object>(
    table: string,
    at: VersionedId,
    patch: RowPatch,
    options: UpdateRowOptions = {},
  ) => {
    checkOptions(options, ['tx', 'versionColumn', 'waitMs'])
    if (!isPlain(at)) throw new InvalidInputError('at', `must be { id, version }, not ${nameGiven(at)}`)
    const { id, version } = at
    const waitMs = checkWait(options.waitMs)
    const name = options.versionColumn ?? 'version'
    const told = await rows.call(options.tx, table, (known) => versionCall(known, at, patch, name, waitMs))
    const found = expectRow(told, table, id)
    if (found.state === 'written') return found.row as R
    const current = found.told === null ? undefined : Number(found.told)
    const isExact = [Number(version), current ?? 0].every(Number.isSafeInteger)
    const exactly = isExact ? undefined : `exactly: ${version} and ${found.told}`
    const reason = found.told === null ? `column "${name}" is null` : exactly
    throw new ConflictError({ subject: nameRow(table, id), expected: Number(version), current, reason })
  }
}

function versionCall(table: Table, at: VersionedId, patch: RowPatch, name: string, waitMs: number): RowCall {
  const parts = readId('id', table, at.id)
  const { column, set, taken } = growVersion(table, name, keyTaken(table, parts))
  const args = new RowArgs()
  const match = matchId(parts, args)
  const sets = args.assign('patch', table, patch, taken)
  if (sets.length === 0) throw new InvalidInputError('patch', 'must not be empty')
  // A version that the column cannot hold was never written.
  const isSame = isBeyond(column, at.version)
    ? 'false'
    : `${ROW}.${column.quoted} ${column.equals} ${args.value('version', column, at.version ?? undefined)}`
  return rowWrite({
    ...{ table, args, match, waitMs },
    write: `update ${table.quoted} as ${ROW} set ${[...sets, set].join(', ')} where ${match} and ${isSame}`,
    told: `${ROW}.${column.quoted}`,
    again: `coalesce(${isSame}, false)`,
  })
}

function isBeyond(column: Column, version: unknown): boolean {
  const isWhole =
    typeof version === 'bigint' || Number.isSafeInteger(version) || /^-?\d{1,40}$/.test(`${version}`)
  const [least, most] = integerRanges[`${column.base}`] ?? []
  if (!isWhole || least === undefined || most === undefined) return false
  const given = BigInt(version as string | number | bigint)
  return given < least || given > most
}
