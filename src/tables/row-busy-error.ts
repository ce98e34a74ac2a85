import { describeRow } from '../errors/describe-row.js'
import { type Blocker, BusyError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import type { Tx } from '../postgres/executor.js'
import { statement } from '../postgres/statement.js'
import { dateFromMicros } from '../postgres/text-values.js'
import type { Table } from './catalog/table.js'
import type { RowCall } from './row-call.js'

const RETRY_MS = 100

/** Finds the id of a locked row, and who has locked it. */
const findHolders = statement(
  `select (h.lockers)[1]::text as id, {schema}.row_blockers(pg_catalog.to_regclass($1::text), (h.lockers)[2:])::text as blockers
   from (select {schema}.row_lockers($2::text, $3::text::text[]) as lockers) h`,
)

interface BusyCall {
  readonly tx: Tx | undefined
  readonly table: Table
  readonly call: RowCall
  /** The blockers of the row, as the server reported them. */
  readonly detail: string | null
  readonly tookMs: number
}

/**
 * Makes the error for a call that could not lock its rows in time. The error has the time that the call took: a statement
 * timeout of the caller can shorten the wait, and several lockers in a row can prolong it.
 */
export async function rowBusyError(
  database: Database,
  { tx, table, call, detail, tookMs }: BusyCall,
): Promise<BusyError> {
  const waitedMs = call.waitMs === 0 ? 0 : Math.round(tookMs)
  const { input } = table.name
  const subject = call.name === 'row_claim' ? `table "${input}"` : `rows of table "${input}"`
  const own = { input, subject, blockers: readBlockers(detail) }
  const { blockers, ...held } = (await findSecond(database, tx, call, own.blockers)) ?? own
  emit('dibs:row.locked-out', {
    ...database.origin,
    table: held.input,
    waitedMs,
    blockers: blockers.length,
  })
  return new BusyError(held.subject, waitedMs, RETRY_MS, { blockers })
}

/** Returns the second row if others have locked that row and not the first. */
async function findSecond(
  database: Database,
  tx: Tx | undefined,
  { second, args }: RowCall,
  ofFirst: readonly Blocker[],
) {
  if (second === undefined || ofFirst.some(({ isSure }) => isSure)) return undefined
  const { input, quoted } = second.table.name
  const [row] = await database.send(findHolders, [quoted, second.held, args.text], { tx })
  const blockers = readBlockers(row?.blockers ?? null).filter(({ isSure }) => isSure)
  if (blockers.length === 0) return undefined
  const values: string[] = JSON.parse(`${row?.id}`)
  const [first] = values
  const id =
    values.length === 1 ? first : Object.fromEntries(second.table.key.map(({ name }, n) => [name, values[n]]))
  return { input, subject: describeRow(input, id), blockers }
}

interface BlockerJson {
  readonly pid: number
  readonly application: string | null
  readonly since: number | null
  readonly query: string | null
  readonly sure: boolean
}

function readBlockers(detail: string | null): readonly Blocker[] {
  const blockers: BlockerJson[] = detail === null ? [] : JSON.parse(detail)
  return blockers.map(({ pid, application, since, query, sure }) => ({
    pid,
    application: application ?? '',
    isSure: sure,
    ...(since === null ? {} : { since: dateFromMicros(String(since)) }),
    ...(query === null ? {} : { query }),
  }))
}
