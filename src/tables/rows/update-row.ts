import { describeRow } from '../../errors/describe-row.js'
import { isPlain } from '../../errors/is-plain.js'
import { ConflictError, InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import { optionTable } from '../../options/option-table.js'
import { string } from '../../options/value-options.js'
import type { Row } from '../../postgres/executor.js'
import { type Column, integerRanges, type Table } from '../catalog/table.js'
import type { RowCall } from '../row-call.js'
import type { Rows } from '../row-executor.js'
import { matchId, type RowId, readId, reservedByKey } from '../row-id.js'
import { type RowOptions, rowOptions } from '../row-options.js'
import { expectRow, rowWrite } from '../row-write.js'
import { ROW, RowArgs, type RowPatch } from '../sql-values.js'
import { growVersion } from './version-column.js'

/** A row, and the version that the caller has read. */
export interface VersionedId {
  readonly id: RowId
  readonly version: number | bigint | string
}

export interface UpdateRowOptions extends RowOptions {
  /** The column that counts the writes: a whole number, not null. Default `version`. */
  readonly versionColumn?: string | undefined
}

export const updateRowOptions = optionTable<UpdateRowOptions>()('rows.update', {
  ...rowOptions.fields,
  versionColumn: string({ default: 'version' }),
})

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
    options?: UpdateRowOptions,
  ) => {
    const { tx, versionColumn: name, waitMs } = updateRowOptions.read(options)
    if (!isPlain(at)) throw new InvalidInputError('at', `must be { id, version }, not ${nameGiven(at)}`)
    const { id, version } = at
    const results = await rows.call(tx, table, (known) => versionCall(known, at, patch, name, waitMs))
    const found = expectRow(results, table, id)
    if (found.state === 'written') return found.row as R
    const current = found.detail === null ? undefined : Number(found.detail)
    const isExact = [Number(version), current ?? 0].every(Number.isSafeInteger)
    const exactly = isExact ? undefined : `exactly: ${version} and ${found.detail}`
    const reason = found.detail === null ? `column "${name}" is null` : exactly
    throw new ConflictError({ subject: describeRow(table, id), expected: Number(version), current, reason })
  }
}

function versionCall(table: Table, at: VersionedId, patch: RowPatch, name: string, waitMs: number): RowCall {
  const parts = readId('id', table, at.id)
  const { column, set, reserved } = growVersion(table, name, reservedByKey(table, parts))
  const args = new RowArgs()
  const match = matchId(parts, args)
  const sets = args.assign('patch', table, patch, reserved)
  if (sets.length === 0) throw new InvalidInputError('patch', 'must not be empty')
  // A version that the column cannot hold was never written.
  const isSame = isBeyond(column, at.version)
    ? 'false'
    : `${ROW}.${column.quoted} ${column.equals} ${args.value('version', column, at.version ?? undefined)}`
  return rowWrite({
    ...{ table, args, match, waitMs },
    write: `update ${table.quoted} as ${ROW} set ${[...sets, set].join(', ')} where ${match} and ${isSame}`, // guard: rows.version
    detail: `${ROW}.${column.quoted}`,
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
