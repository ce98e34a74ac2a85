import {
  BusyError,
  ClosedError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  InvalidInputError,
  StatementTimeoutError,
} from '../errors.js'
import { emit } from '../postgres/events.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { RowArgs } from '../postgres/rows/row-args.js'
import type { Rows } from '../postgres/rows/rows.js'
import { readTableName } from '../postgres/rows/table-name.js'
import { statement } from '../postgres/statement.js'
import { type AggregateCall, LIMIT_MS, MAX_VAIN } from './aggregate-call.js'
import type { AggregateSpec } from './aggregate-spec.js'

/** What was done about parents that were marked. */
export interface AggregateRefresh {
  /** Parents that were counted anew. */
  readonly recomputed: number
  /** Marks that are gone by that, or since their parent is. */
  readonly marks: number
  /** Parents that are still marked: others have locked them, a policy hides them, or they are not there yet. */
  readonly locked: number
  /** Parents that the database did not let count: they stay marked, behind all others. */
  readonly failed: number
  /** Why the first of them failed. */
  readonly error?: unknown
  /** There was more than one run takes on, or too many have failed. */
  readonly isMore: boolean
}

/** Parents in one statement, which holds their locks. */
const PARENTS = 100
/** Marks that it looks at, at the most. */
const MARKS = BigInt(PARENTS * 100)
const MAX_BATCHES = 100
/** So long one run begins something new: others wait for it in their round of maintenance. */
const MAX_MS = 30_000
/** How long that statement may take: a third of a run at the most. */
const PART_MS = 10_000
/** So many that fail are no matter of a row. */
const MAX_FAILED = 100
const WAIT_MS = 1_000

const spanOfMarks = statement(
  'select s[1]::text as first, s[2]::text as last from {schema}.aggregate_span($1::text, $2::text) s',
  { readOnly: true },
)
const nextMarked = statement(
  `select pg_catalog.array_to_json(m.ids)::text as ids, (select max(s.n) from unnest(m.seqs) s(n))::text as seq, m.last::text as last
   from {schema}.aggregate_marked($1::text, pg_catalog.to_regclass($2::text)::pg_catalog.oid, $3::text::bigint, $4::text::bigint, ''::text, $5::text::integer) m`,
  { readOnly: true },
)
const putBack = statement(
  'select {schema}.aggregate_put_back($1::text, $2::text, $3::text, $4::text::bigint, $5::text::integer)::text as count',
)
/** Marks of tables that are gone: there is no aggregate that would count them. */
export const forgetMarks = statement('select {schema}.aggregate_forget($1::text::integer)::text as count')

/**
 * Goes through the marks that are there now, part by part. Of many it begins anywhere, and comes to the first ones later: so those that cannot be counted now keep no other waiting for
 * ever, and processes that do this together meet seldom. A part in which one fails is done parent by parent.
 */
export async function refreshMarked(
  spec: AggregateSpec,
  rows: Rows,
  call: AggregateCall,
  signal: AbortSignal | undefined,
): Promise<AggregateRefresh> {
  const run = new Refresh(spec, rows, call, signal)
  const [span] = await rows.send(spanOfMarks, [spec.name, run.table], undefined)
  if (!span?.last) return { ...run.done, isMore: false }
  const [first, last] = [BigInt(`${span.first}`), BigInt(span.last)]
  // Fewer are looked at together, or in any case within one run.
  const isLong = last - first > MARKS
  const middle = isLong ? first + BigInt(Math.floor(Math.random() * Number(last - first))) : 0n
  const isThrough = (await run.through(middle, last)) && (!isLong || (await run.through(0n, middle)))
  if (run.isHeldUp) throw run.done.error
  return { ...run.done, isMore: !isThrough }
}

class Refresh {
  readonly done = { recomputed: 0, marks: 0, locked: 0, failed: 0, error: undefined as unknown }
  readonly table: string
  readonly #name: string
  readonly #rows: Rows
  readonly #call: AggregateCall
  readonly #signal: AbortSignal | undefined
  readonly #endsAt = performance.now() + MAX_MS
  #batches = 0
  /** So many in a row were held up, and none between was written. */
  #inVain = 0

  constructor(
    { name, parent }: AggregateSpec,
    rows: Rows,
    call: AggregateCall,
    signal: AbortSignal | undefined,
  ) {
    this.#name = name
    this.table = readTableName(parent, 'parent').quoted
    this.#rows = rows
    this.#call = call
    this.#signal = signal
  }

  /** It came to nothing, since others have the tables, or what their triggers write to. */
  get isHeldUp(): boolean {
    return this.#inVain > 0 && this.#inVain === this.done.failed && this.done.recomputed === 0
  }

  get #isOver(): boolean {
    return (
      this.#signal?.aborted === true ||
      this.#batches >= MAX_BATCHES ||
      performance.now() > this.#endsAt ||
      this.done.failed >= MAX_FAILED
    )
  }

  /** The marks behind `after`, up to `until`. @returns all of them */
  async through(after: bigint, until: bigint): Promise<boolean> {
    for (let place: string | null = String(after); place !== null; this.#batches++) {
      if (this.#isOver) return false
      const part = await this.#part(place, String(until), '')
      if ('last' in part) {
        place = part.last
        continue
      }
      const asked = [this.#name, this.table, place, String(until), String(PARENTS)]
      const [next] = await this.#rows.send(nextMarked, asked, undefined)
      const ids: readonly string[] = JSON.parse(next?.ids ?? '[]')
      for (const [n, id] of ids.entries()) {
        // One at least, however long the part has taken: else the next run comes no further.
        if (n === 0 ? this.#signal?.aborted : this.#isOver) return false
        const one = await this.#part(place, `${next?.seq}`, id)
        if (!('error' in one)) continue
        await this.#putBack(id, until, one.error)
        if (one.error instanceof BusyError && ++this.#inVain === MAX_VAIN) return false
      }
      place = next?.last ?? null
    }
    return true
  }

  /** Where to go on; or what was wrong with one of them. */
  async #part(
    after: string,
    until: string,
    id: string,
  ): Promise<{ readonly last: string | null } | { readonly error: unknown }> {
    const startedAt = performance.now()
    try {
      const told = await refreshPart(
        this.#call,
        [this.#name, after, until, id],
        id === '' ? PART_MS : LIMIT_MS,
      )
      this.done.recomputed += told.parents
      if (told.parents > 0) this.#inVain = 0
      this.done.marks += told.marks
      this.done.locked += told.locked
      return { last: told.last === null ? null : String(told.last) }
    } catch (error) {
      if (isEveryones(error)) throw error
      if (!hasWaitedInVain(error)) return { error }
      const waitedMs = performance.now() - startedAt
      // It waits for no parent, but a trigger may.
      const subject = `the tables of aggregate "${this.#name}", or what a trigger of them writes to`
      return { error: new BusyError(subject, waitedMs, 100, { cause: error }) }
    }
  }

  async #putBack(id: string, until: bigint, error: unknown): Promise<void> {
    await this.#rows.send(putBack, [this.#name, this.table, id, String(until), String(WAIT_MS)], undefined)
    emit('dibs:aggregate.failed', { ...this.#rows.origin, aggregate: this.#name, id, error })
    this.done.failed++
    this.done.error ??= error
  }
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

async function refreshPart(call: AggregateCall, place: readonly string[], ms: number): Promise<ToldPart> {
  const [told] = await call(undefined, (sql) => ({
    name: 'aggregate_refresh',
    statements: [...place, sql.lockFree, sql.absent, sql.refresh],
    args: new RowArgs(),
    rest: [String(PARENTS)],
    waitMs: WAIT_MS,
    limit: { ms, readOnly: false },
  }))
  return JSON.parse(`${told?.told}`)
}
