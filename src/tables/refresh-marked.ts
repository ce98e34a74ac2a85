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

/** The result of one run over the marked parents. */
export interface AggregateRefresh {
  /** Parents that were recomputed. */
  readonly recomputed: number
  /** Marks that were removed, because their parent was recomputed or no longer exists. */
  readonly marks: number
  /** Parents that are still marked: others have locked them, a policy hides them, or they do not exist yet. */
  readonly locked: number
  /** Parents that the database refused to recompute. They stay marked, behind all others. */
  readonly failed: number
  /** The error of the first parent that failed. */
  readonly error?: unknown
  /** True if marks are left: there were more than one run handles, or too many parents failed. */
  readonly isMore: boolean
}

/** How many parents one statement recomputes. The statement holds their locks. */
const PARENTS = 100
/** The most marks that one statement reads. */
const MARKS = BigInt(PARENTS * 100)
const MAX_BATCHES = 100
/** After this time a run begins nothing new, because the rest of the maintenance round waits for it. */
const MAX_MS = 30_000
/** The time limit of one statement: at most a third of a run. */
const PART_MS = 10_000
/** A run ends after this many failures: their cause is not a single row. */
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
/** Removes the marks of dropped tables, which no aggregate would ever recompute. */
export const forgetMarks = statement('select {schema}.aggregate_forget($1::text::integer)::text as count')

/**
 * Processes the current marks in batches. With many marks, a run begins at a random place and comes to the first ones later. So parents that cannot be counted
 * now do not block the others forever, and concurrent processes rarely meet. A batch in which one parent fails is repeated parent by parent.
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
  // Fewer marks fit into one statement, or at least into one run.
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
  /** How many parents in a row could not be written in time, with none written in between. */
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

  /** True if nothing was recomputed, because others have locked the tables, or what their triggers write to. */
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

  /** Processes the marks behind `after`, up to `until`. @returns whether all of them were processed */
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
        // Try at least one parent, however long the batch took. Otherwise the next run makes no progress either.
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

  /** Returns where to continue, or the error of one of the parents. */
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
      // The statement skips locked parents, but a trigger may wait.
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

/** Whether all other parents would meet the error too. A statement that the server ended because it took too long concerns only its own parents. */
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
