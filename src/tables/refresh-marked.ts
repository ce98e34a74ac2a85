import { BusyError, ClosedError, ConnectionLostError } from '../errors.js'
import { emit } from '../postgres/events.js'
import { RowArgs } from '../postgres/rows/row-args.js'
import type { Rows } from '../postgres/rows/rows.js'
import { readTableName } from '../postgres/rows/table-name.js'
import { statement } from '../postgres/statement.js'
import type { AggregateCall } from './aggregate-call.js'
import type { AggregateSpec } from './aggregate-spec.js'

/** What was done about parents that were marked. */
export interface AggregateRefresh {
  /** Parents that were counted anew. */
  readonly recomputed: number
  /** Marks that are gone by that, or since their parent is. */
  readonly marks: number
  /** Parents that others had locked: they stay marked. */
  readonly locked: number
  /** Parents that the database did not let count: they stay marked, behind all others. */
  readonly failed: number
  /** There was more than one run takes on. */
  readonly hasMore: boolean
}

/** Parents in one statement, which holds their locks. */
const PARENTS = 100
const MAX_BATCHES = 100
/** So many that fail are no matter of a row. */
const MAX_FAILED = 10
const WAIT_MS = 1_000

const lastMark = statement('select {schema}.aggregate_last($1::text, $2::text)::text as seq', {
  readOnly: true,
})
const putBack = statement(
  'select {schema}.aggregate_put_back($1::text, $2::text, $3::text::bigint, $4::text::bigint, $5::text::integer)::text as id',
)

/** Goes through the marks that are there now, part by part. One that fails is found out by itself, and keeps no other waiting. */
export async function refreshMarked(
  { name, parent }: AggregateSpec,
  rows: Rows,
  call: AggregateCall,
  signal: AbortSignal | undefined,
): Promise<AggregateRefresh> {
  const done = { recomputed: 0, marks: 0, locked: 0, failed: 0, hasMore: false }
  const { quoted } = readTableName(parent, 'parent')
  const [row] = await rows.send(lastMark, [name, quoted], undefined)
  const until = row?.seq
  if (until === null || until === undefined) return done
  let after: string | null = '0'
  let singles = 0
  for (let batch = 0; after !== null && !signal?.aborted; batch++) {
    if (batch - done.failed >= MAX_BATCHES + singles) return { ...done, hasMore: true }
    try {
      const told = await refreshPart(call, [name, after, until], singles > 0 ? 1 : PARENTS)
      done.recomputed += told.parents
      done.marks += told.marks
      done.locked += told.locked
      after = told.last === null ? null : String(told.last)
      if (singles > 0) singles--
    } catch (error) {
      if (isEveryones(error)) throw error
      if (singles === 0) {
        singles = PARENTS
        continue
      }
      const [put] = await rows.send(putBack, [name, quoted, after, until, String(WAIT_MS)], undefined)
      emit('dibs:aggregate.failed', { ...rows.origin, aggregate: name, id: `${put?.id}`, error })
      if (++done.failed >= MAX_FAILED) throw error
    }
  }
  return { ...done, hasMore: after !== null }
}

/** All other parents would meet it, too. One that takes too long is one by itself. */
const isEveryones = (error: unknown): boolean =>
  error instanceof ClosedError || error instanceof ConnectionLostError || error instanceof BusyError

interface ToldPart {
  readonly parents: number
  readonly marks: number
  readonly locked: number
  readonly last: number | null
}

async function refreshPart(
  call: AggregateCall,
  place: readonly string[],
  parents: number,
): Promise<ToldPart> {
  const [told] = await call(undefined, (sql) => ({
    name: 'aggregate_refresh',
    statements: [...place, sql.lock({ skips: true, tells: 'id' }), sql.absent, sql.refresh],
    args: new RowArgs(),
    rest: [String(parents)],
    waitMs: WAIT_MS,
  }))
  return JSON.parse(`${told?.told}`)
}
