import { BusyError, InProgressError } from '../../errors.js'
import { Coalescer } from '../../postgres/coalescer.js'
import type { Database } from '../../postgres/database.js'
import type { Tx } from '../../postgres/executor.js'
import { checkKey } from '../../postgres/key.js'
import { orBusy, SHORT_RETRY_MS } from '../../postgres/or-busy.js'
import type { Statement } from '../../postgres/statement.js'
import { type TextRow, type TextValue, textArray } from '../../postgres/text-values.js'
import { sendSorted } from '../send-sorted.js'
import type { BatchResult, QuotaRow, ResolveResult, TakeResult } from './quota-result.js'
import type { QuotaRequest, QuotaSpec, SubjectOptions } from './quota-spec.js'
import * as statements from './quota-statements.js'

/** The decision about one request, and the counter after its batch. */
export interface TakeDecision {
  readonly take: TakeResult
  readonly row: QuotaRow
}

interface BatchOptions {
  /** Reserves the amounts for this time. Undefined: takes them. */
  readonly leaseMs?: number | undefined
  readonly waitMs: number
  readonly tx?: Tx | undefined
}

/** Sends the statements of one quota. Concurrent takes from one subject share a statement. */
export class QuotaStore {
  readonly #database: Database
  readonly #spec: QuotaSpec
  readonly #coalescer: Coalescer<QuotaRequest, TakeDecision>

  constructor(database: Database, spec: QuotaSpec) {
    this.#database = database
    this.#spec = spec
    this.#coalescer = new Coalescer((requests, waitMs) => this.#takeOneSubject(requests, waitMs), {
      sendMany: (groups) => this.#takeManySubjects(groups),
    })
  }

  async take(request: QuotaRequest, tx: Tx | undefined): Promise<TakeDecision> {
    const { waitMs } = this.#spec
    if (tx !== undefined) return firstOf(await this.#takeBatch([request], { waitMs, tx }))
    const { subject, limit, per } = request
    const key = JSON.stringify([subject, limit, per])
    return await this.#coalescer.add(key, request, { waitMs, subject: this.#describe(subject) })
  }

  async reserve(request: QuotaRequest, leaseMs: number, tx: Tx | undefined): Promise<TakeDecision> {
    return firstOf(await this.#takeBatch([request], { leaseMs, waitMs: this.#spec.waitMs, tx }))
  }

  /** Ends the reservation or the take that has this id. */
  async resolve(
    id: string,
    action: 'settle' | 'void' | 'refund',
    amount: number | null,
    { limit = this.#spec.limit, timeZone, tx }: SubjectOptions,
  ): Promise<ResolveResult> {
    const { name, ifLate, waitMs } = this.#spec
    const values = [
      ...[name, checkKey('id', id), action, amount === null ? null : String(amount), ifLate],
      ...[String(limit), this.#spec.periodFor(timeZone)],
    ]
    const statement = tx === undefined ? statements.resolveQuota : statements.resolveQuotaJoined
    const subject = `"${id}" of quota "${name}"`
    const result = await this.#send<ResolveResult>(statement, values, subject, { waitMs, tx })
    if (result.state !== 'leased') return result
    throw new InProgressError(subject, toMs(result.freeInUs) ?? SHORT_RETRY_MS, id, {
      message: `A call of dibs.acquire works under ${subject} just now, and ends it itself. Nothing was changed.`,
    })
  }

  async peek(subject: string, { timeZone, tx }: SubjectOptions): Promise<QuotaRow> {
    const values = [this.#spec.name, checkKey('subject', subject), this.#spec.periodFor(timeZone)]
    const [row] = await this.#database.send(statements.peekQuota, values, { tx, waitMs: 0 })
    return JSON.parse(`${row?.result}`)
  }

  /** Reads the counters that differ from their entries: at most `count`, of subjects after `after`. */
  async findDrifts(
    subject: string | undefined,
    after: string | undefined,
    count: number,
  ): Promise<TextRow[]> {
    const values = [this.#spec.name, subject ?? null, after ?? null, String(count)]
    return await this.#database.send(statements.verifyQuota, values)
  }

  /**
   * Takes for one subject under one limit. An id that another transaction is about to use for another subject must not delay
   * the other requests. After a `BusyError`, this function therefore sends each request alone.
   */
  async #takeOneSubject(
    requests: readonly QuotaRequest[],
    waitMs: number,
  ): Promise<readonly (TakeDecision | Error)[]> {
    try {
      return await this.#takeBatch(requests, { waitMs })
    } catch (error) {
      const hasIds = requests.length > 1 && requests.some(({ id }) => id !== null)
      if (!hasIds || !(error instanceof BusyError)) throw error
    }
    const decisions: (TakeDecision | Error)[] = []
    for (const request of requests)
      decisions.push(await this.#takeBatch([request], { waitMs: 1 }).then(firstOf, (error: Error) => error))
    return decisions
  }

  /** Each group is for one subject. This statement does not wait for a subject that another caller has locked. */
  async #takeManySubjects(
    groups: readonly (readonly QuotaRequest[])[],
  ): Promise<readonly (readonly TakeDecision[] | undefined)[]> {
    return await sendSorted(groups.map(writeGroup), async (sorted) => {
      const values = [this.#spec.name, JSON.stringify(sorted), this.#spec.keepMs]
      const [row] = await this.#database.send(statements.takeQuotas, values, { waitMs: 0 })
      const results: readonly BatchResult[] = JSON.parse(`${row?.result}`)
      return results.map((result) => (result.state === 'done' ? toDecisions(result) : undefined))
    })
  }

  /** All requests of a batch are for one subject under one limit. */
  async #takeBatch(
    requests: readonly QuotaRequest[],
    { leaseMs, waitMs, tx }: BatchOptions,
  ): Promise<readonly TakeDecision[]> {
    const { subject, limit, per } = firstOf(requests)
    const isPlain = leaseMs === undefined && requests.every(({ id }) => id === null)
    const statement = isPlain ? statements.takeQuotaPlain : statements.takeQuota
    const values = [
      ...[this.#spec.name, subject, String(limit), per, writeAmounts(requests), writeIds(requests) ?? null],
      ...[leaseMs === undefined ? null : String(leaseMs), this.#spec.keepMs],
    ]
    const result = await this.#send<BatchResult>(
      tx === undefined ? statement : statements.takeQuotaJoined,
      values,
      this.#describe(subject),
      { waitMs, tx },
    )
    return toDecisions(result)
  }

  /**
   * Bounds each wait. Outside of a transaction, the wait ends before the statement timeout. In a transaction, it ends in a way that leaves the transaction
   * usable.
   */
  async #send<T extends object>(
    statement: Statement,
    values: readonly TextValue[],
    subject: string,
    { waitMs, tx }: { readonly waitMs: number; readonly tx?: Tx | undefined },
  ): Promise<T> {
    const boundMs = Math.max(1, tx === undefined ? this.#database.boundWait(waitMs) : waitMs)
    const send = async (): Promise<T> => {
      const [row] = await this.#database.send(statement, [...values, String(boundMs)], {
        tx,
        waitMs: boundMs,
      })
      return JSON.parse(`${row?.result}`)
    }
    return await orBusy(subject, send, { tx })
  }

  #describe(subject: string): string {
    return `a turn at quota "${this.#spec.name}" of "${subject}"`
  }
}

const toDecisions = ({ takes, row }: BatchResult): readonly TakeDecision[] =>
  takes.map((take) => ({ take, row }))

/** The requests for one subject, as the SQL function `quota_take_many` reads them. */
function writeGroup(requests: readonly QuotaRequest[]) {
  const { subject, limit, per } = firstOf(requests)
  const ids = writeIds(requests)
  return {
    ...{ subject, limit, amounts: writeAmounts(requests) },
    ...(per === null ? {} : { per: JSON.parse(per) }),
    ...(ids === undefined ? {} : { ids }),
  }
}

const writeAmounts = (requests: readonly QuotaRequest[]): string =>
  textArray(requests.map(({ amount }) => String(amount)))

/** Undefined if no request has an id. */
const writeIds = (requests: readonly QuotaRequest[]): string | undefined =>
  requests.every(({ id }) => id === null) ? undefined : textArray(requests.map(({ id }) => id))

/** Returns the first item of a list that cannot be empty. */
function firstOf<T>([first]: readonly T[]): T {
  if (first === undefined)
    throw new TypeError('The database did not answer as its functions do: is its schema of another release?')
  return first
}

/** Rounds up, because a retry that comes a millisecond too early would be refused again. */
export const toMs = (us: number | null): number | undefined =>
  us === null ? undefined : Math.max(1, Math.ceil(us / 1_000))
