import {
  BusyError,
  ClosedError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  InvalidInputError,
  StatementTimeoutError,
} from '../../errors.js'
import { emit } from '../../postgres/events.js'
import { hasWaitedInVain } from '../../postgres/fault.js'
import { statement } from '../../postgres/statement.js'
import { readTableName } from '../catalog/table-name.js'
import type { Rows } from '../row-executor.js'
import { RowArgs } from '../sql-values.js'
import { type AggregateCall, LIMIT_MS, MAX_TIMEOUTS_IN_A_ROW } from './aggregate-call.js'
import type { AggregateSpec } from './aggregate-spec.js'

/** The result of one run over the marked parents. */
export interface AggregateRefresh {
  /** Parents that were recomputed. */
  readonly recomputed: number
  /** Marks that were removed, because their parent was recomputed or no longer exists. */
  readonly marks: number
  /** Parents that are still marked: others have locked them, a policy hides them, or they do not exist yet. */
  readonly locked: number
  /** Parents that the database refused to recompute. Their marks move behind all others. */
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
  'select s[1]::text as first, s[2]::text as last from {schema}.aggregate_mark_range($1::text, $2::text) s',
  { readOnly: true },
)
const nextMarked = statement(
  `select pg_catalog.array_to_json(m.ids)::text as ids, (select max(s.n) from unnest(m.seqs) s(n))::text as seq, m.last::text as last
   from {schema}.aggregate_next_marks($1::text, pg_catalog.to_regclass($2::text)::pg_catalog.oid, $3::text::bigint, $4::text::bigint, ''::text, $5::text::integer) m`,
  { readOnly: true },
)
const requeueMark = statement(
  'select {schema}.aggregate_requeue_mark($1::text, $2::text, $3::text, $4::text::bigint, $5::text::integer)::text as count',
)
/** Removes the marks of dropped tables, which no aggregate would ever recompute. */
export const deleteOrphanedMarks = statement(
  'select {schema}.aggregate_delete_orphaned_marks($1::text::integer)::text as count',
)

/**
 * Processes the current marks in batches. With many marks, a run begins at a random place and comes to the first ones later.
 * This way, parents that cannot be counted now do not block the others forever, and concurrent processes rarely meet. A batch
 * in which one parent fails is repeated parent by parent.
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
  const isDone = (await run.process(middle, last)) && (!isLong || (await run.process(0n, middle)))
  if (run.isBlocked) throw run.done.error
  return { ...run.done, isMore: !isDone }
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
  /** How many parents in a row ended in a lock timeout, with none written in between. */
  #timeoutsInARow = 0

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
  get isBlocked(): boolean {
    return this.#timeoutsInARow > 0 && this.#timeoutsInARow === this.done.failed && this.done.recomputed === 0
  }

  get #isOver(): boolean {
    return (
      this.#signal?.aborted === true ||
      this.#batches >= MAX_BATCHES ||
      performance.now() > this.#endsAt ||
      this.done.failed >= MAX_FAILED
    )
  }

  /** Processes the marks after `after`, up to `until`. Returns true if all of them were processed. */
  async process(after: bigint, until: bigint): Promise<boolean> {
    for (let place: string | null = String(after); place !== null; this.#batches++) {
      if (this.#isOver) return false
      const part = await this.#processPart(place, String(until), '')
      if ('last' in part) {
        place = part.last
        continue
      }
      const values = [this.#name, this.table, place, String(until), String(PARENTS)]
      const [next] = await this.#rows.send(nextMarked, values, undefined)
      const ids: readonly string[] = JSON.parse(next?.ids ?? '[]')
      for (const [n, id] of ids.entries()) {
        // Try at least one parent, however long the batch took. Otherwise the next run makes no progress either.
        if (n === 0 ? this.#signal?.aborted : this.#isOver) return false
        const one = await this.#processPart(place, `${next?.seq}`, id)
        if (!('error' in one)) continue
        await this.#requeue(id, until, one.error)
        if (one.error instanceof BusyError && ++this.#timeoutsInARow === MAX_TIMEOUTS_IN_A_ROW) return false
      }
      place = next?.last ?? null
    }
    return true
  }

  /** Returns where to continue, or the error of one of the parents. */
  async #processPart(
    after: string,
    until: string,
    id: string,
  ): Promise<{ readonly last: string | null } | { readonly error: unknown }> {
    const startedAt = performance.now()
    try {
      const counts = await refreshPart(
        this.#call,
        [this.#name, after, until, id],
        id === '' ? PART_MS : LIMIT_MS,
      )
      this.done.recomputed += counts.parents
      if (counts.parents > 0) this.#timeoutsInARow = 0
      this.done.marks += counts.marks
      this.done.locked += counts.locked
      return { last: counts.last === null ? null : String(counts.last) }
    } catch (error) {
      if (failsForAll(error)) throw error
      if (!hasWaitedInVain(error)) return { error } // guard: aggregate.isolate
      const waitedMs = performance.now() - startedAt
      // The statement skips locked parents, but a trigger may wait.
      const subject = `the tables of aggregate "${this.#name}", or what a trigger of them writes to`
      return { error: new BusyError(subject, waitedMs, 100, { cause: error }) }
    }
  }

  async #requeue(id: string, until: bigint, error: unknown): Promise<void> {
    await this.#rows.send(
      requeueMark,
      [this.#name, this.table, id, String(until), String(WAIT_MS)],
      undefined,
    )
    emit('dibs:aggregate.failed', { ...this.#rows.origin, aggregate: this.#name, id, error })
    this.done.failed++
    this.done.error ??= error
  }
}

/**
 * True if all other parents would meet the error too. A statement that the server ended because it took too long concerns only
 * its own parents.
 */
const failsForAll = (error: unknown): boolean =>
  [ClosedError, ConnectionLostError, BusyError, CommitOutcomeUnknownError, InvalidInputError].some(
    (type) => error instanceof type,
  ) ||
  (error instanceof StatementTimeoutError && error.sqlState === undefined)

interface PartCounts {
  readonly parents: number
  readonly marks: number
  readonly locked: number
  readonly last: number | null
}

async function refreshPart(call: AggregateCall, place: readonly string[], ms: number): Promise<PartCounts> {
  const [result] = await call(undefined, (sql) => ({
    name: 'aggregate_refresh',
    statements: [...place, sql.lockAvailable, sql.missingIds, sql.refresh],
    args: new RowArgs(),
    rest: [String(PARENTS)],
    waitMs: WAIT_MS,
    limit: { ms, readOnly: false },
  }))
  return JSON.parse(`${result?.detail}`)
}
