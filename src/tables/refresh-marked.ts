import {
  BusyError,
  ClosedError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  InvalidInputError,
  StatementTimeoutError,
} from '../errors.js'
import { emit } from '../postgres/events.js'
import { RowArgs } from '../postgres/rows/row-args.js'
import type { Rows } from '../postgres/rows/rows.js'
import { readTableName } from '../postgres/rows/table-name.js'
import { statement } from '../postgres/statement.js'
import { type AggregateCall, LIMIT_MS } from './aggregate-call.js'
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
  /** Why the first of them failed. */
  readonly error?: unknown
  /** There was more than one run takes on, or too many have failed. */
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
const nextMarked = statement(
  `select pg_catalog.array_to_json(m.ids)::text as ids, m.last::text as last
   from {schema}.aggregate_marked($1::text, pg_catalog.to_regclass($2::text)::pg_catalog.oid, $3::text::bigint, $4::text::bigint, ''::text, $5::text::integer) m`,
  { readOnly: true },
)
const putBack = statement(
  'select {schema}.aggregate_put_back($1::text, $2::text, $3::text, $4::text::bigint, $5::text::integer)::text as count',
)
/** Marks of tables that are gone: there is no aggregate that would count them. */
export const forgetMarks = statement('select {schema}.aggregate_forget($1::text::integer)::text as count')

/** Goes through the marks that are there now, part by part. A part in which one fails is done parent by parent, so that it keeps no other waiting. */
export async function refreshMarked(
  { name, parent }: AggregateSpec,
  rows: Rows,
  call: AggregateCall,
  signal: AbortSignal | undefined,
): Promise<AggregateRefresh> {
  const done = { recomputed: 0, marks: 0, locked: 0, failed: 0, error: undefined as unknown }
  const { quoted } = readTableName(parent, 'parent')
  const [row] = await rows.send(lastMark, [name, quoted], undefined)
  const until = row?.seq
  if (until === null || until === undefined) return { ...done, hasMore: false }
  /** Where to go on; or what was wrong with one of them. */
  const refresh = async (
    after: string,
    id: string,
  ): Promise<{ last: string | null } | { error: unknown }> => {
    try {
      const told = await refreshPart(call, [name, after, until, id])
      done.recomputed += told.parents
      done.marks += told.marks
      done.locked += told.locked
      return { last: told.last === null ? null : String(told.last) }
    } catch (error) {
      if (isEveryones(error)) throw error
      return { error }
    }
  }
  let after: string | null = '0'
  for (let batch = 0; batch < MAX_BATCHES && after !== null && !signal?.aborted; batch++) {
    const part = await refresh(after, '')
    if ('last' in part) {
      after = part.last
      continue
    }
    const [next] = await rows.send(nextMarked, [name, quoted, after, until, String(PARENTS)], undefined)
    for (const id of JSON.parse(next?.ids ?? '[]') as string[]) {
      if (signal?.aborted || done.failed >= MAX_FAILED) return { ...done, hasMore: true }
      const one = await refresh(after, id)
      if ('last' in one) continue
      const { error } = one
      await rows.send(putBack, [name, quoted, id, until, String(WAIT_MS)], undefined)
      emit('dibs:aggregate.failed', { ...rows.origin, aggregate: name, id, error })
      done.failed++
      done.error ??= error
    }
    after = next?.last ?? null
  }
  return { ...done, hasMore: after !== null }
}

/** All other parents would meet it, too. One that the server has ended, since it took too long, is one by itself. */
const isEveryones = (error: unknown): boolean =>
  [ClosedError, ConnectionLostError, BusyError, CommitOutcomeUnknownError, InvalidInputError].some(
    (type) => error instanceof type,
  ) ||
  (error instanceof StatementTimeoutError && error.sqlState === undefined)

interface ToldPart {
  readonly parents: number
  readonly marks: number
  readonly locked: number
  readonly last: number | null
}

async function refreshPart(call: AggregateCall, place: readonly string[]): Promise<ToldPart> {
  const [told] = await call(undefined, (sql) => ({
    name: 'aggregate_refresh',
    statements: [...place, sql.lockFree, sql.absent, sql.refresh],
    args: new RowArgs(),
    rest: [String(PARENTS)],
    waitMs: WAIT_MS,
    limit: { ms: LIMIT_MS, readOnly: false },
  }))
  return JSON.parse(`${told?.told}`)
}
