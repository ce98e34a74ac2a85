import { randomUUID } from 'node:crypto'
import { HoldEndedError, InvalidInputError, NeverFitsError, QuotaExceededError } from '../../errors.js'
import { checkAmount } from '../../options/check-amount.js'
import type { Database } from '../../postgres/database.js'
import { emit } from '../../postgres/events.js'
import type { Tx } from '../../postgres/executor.js'
import { hashKey, templateOf } from '../../postgres/key.js'
import { trackJoinedMethods } from '../../postgres/open-calls.js'
import {
  ANY_TEXT,
  decodeCursor,
  type Page,
  type PageOptions,
  pageOptions,
  toPage,
} from '../../postgres/page.js'
import { dateFromMicros, type TextRow } from '../../postgres/text-values.js'
import { QuotaClaim } from '../acquire/acquire-claims.js'
import { Hold, type ReserveAttempt } from './hold.js'
import {
  type QuotaAttempt,
  type QuotaDrift,
  type QuotaRefund,
  type QuotaRefusal,
  type QuotaRow,
  type QuotaTake,
  type QuotaUse,
  quotaMismatch,
  type ResolveResult,
  readUse,
  type TakeResult,
} from './quota-result.js'
import {
  type QuotaFilter,
  type QuotaOptions,
  type QuotaRequest,
  QuotaSpec,
  quotaClaimOptions,
  quotaFilter,
  type RefundOptions,
  type ReserveOptions,
  refundOptions,
  reserveOptions,
  type SubjectOptions,
  subjectOptions,
  type TakeOptions,
  takeOptions,
  voidOptions,
} from './quota-spec.js'
import { QuotaStore, toMs } from './quota-store.js'

/**
 * A limit that many callers share and none exceeds: `dibs.quota`. Defining a quota starts nothing. Every process may define it,
 * and may define it again with another limit.
 *
 * @example
 * const points = dibs.quota('daily-points', { limit: 50, per: 'day', timeZone: 'Europe/Berlin' })
 * const { remaining } = await points.take(child, 5)
 */
export class Quota {
  readonly #database: Database
  readonly #spec: QuotaSpec
  readonly #store: QuotaStore

  constructor(database: Database, name: string, options: QuotaOptions) {
    this.#database = database
    this.#spec = new QuotaSpec(name, options)
    this.#store = new QuotaStore(database, this.#spec)
  }

  get name(): string {
    return this.#spec.name
  }

  /**
   * Takes an amount, or throws `QuotaExceededError` and takes nothing. An amount above the limit throws `NeverFitsError`. Concurrent calls of one process
   * for one subject share a statement.
   *
   * @example
   * const { used, remaining, resetsAt } = await points.take(child, 5, { id: `event-${event.id}` })
   */
  async take(subject: string, amount = 1, options: TakeOptions = {}): Promise<QuotaTake> {
    const read = takeOptions.read(options)
    const request = this.#request(subject, amount, read)
    this.#checkFits(request, read)
    const attempt = await this.#take(request, read.tx)
    if (!attempt.ok) throw this.#explain(subject, attempt)
    const { ok: _, ...taken } = attempt
    return taken
  }

  /**
   * Like `take`, but returns `{ ok: false }` instead of an error if the amount does not fit. `retryAfterMs` is missing if no
   * wait helps: the amount is above the limit, or a stock is sold out. `BusyError` is thrown, because it is then unknown how
   * much is left.
   *
   * @example
   * const attempt = await points.tryTake(child, 5)
   * if (!attempt.ok) console.log(`${attempt.remaining} of ${attempt.limit} left`, attempt.retryAfterMs ?? 'no wait helps')
   */
  async tryTake(subject: string, amount = 1, options: TakeOptions = {}): Promise<QuotaAttempt> {
    const read = takeOptions.read(options)
    return await this.#take(this.#request(subject, amount, read), read.tx)
  }

  /**
   * Sets an amount aside for `leaseMs`. `settle` takes the amount that was needed and gives back the rest. `void` gives all of it back, and so does the
   * end of the lease. Until then, the amount counts as used.
   *
   * @example
   * const hold = await tokens.reserve(tenant, 4_000, { leaseMs: 120_000 })
   * const answer = await model.ask(prompt)
   * await hold.settle(answer.tokens)
   */
  async reserve(subject: string, amount = 1, options: ReserveOptions = {}): Promise<Hold> {
    const read = reserveOptions.read(options)
    const request = this.#request(subject, amount, read)
    this.#checkFits(request, read)
    const attempt = await this.#reserve(request, read)
    if (attempt.ok) return attempt.hold
    throw this.#explain(subject, attempt)
  }

  /**
   * Like `reserve`, but returns `{ ok: false }` instead of an error if the amount does not fit, as `tryTake` does.
   *
   * @example
   * const attempt = await tokens.tryReserve(tenant, 4_000, { leaseMs: 120_000 })
   * if (attempt.ok) await attempt.hold.settle((await model.ask(prompt)).tokens)
   * else console.log(`${attempt.remaining} left until ${attempt.resetsAt}`)
   */
  async tryReserve(subject: string, amount = 1, options: ReserveOptions = {}): Promise<ReserveAttempt> {
    const read = reserveOptions.read(options)
    return await this.#reserve(this.#request(subject, amount, read), read)
  }

  /**
   * Settles a reservation by its id, in any process, as `hold.settle` does. Takes `actual`, at most the reserved amount, and gives back the rest. A
   * repeated call with the same amount changes nothing.
   *
   * @example
   * await tokens.settle(requestId, answer.tokens)
   */
  async settle(id: string, actual: number, options: SubjectOptions = {}): Promise<QuotaUse> {
    const read = subjectOptions.read(options)
    const amount = checkAmount('actual', actual, 0)
    const result = await this.#store.resolve(id, 'settle', amount, read)
    if (result.state === 'too much')
      throw new InvalidInputError(
        'actual',
        `must be at most the ${result.requested} that were reserved, not ${actual}`,
      )
    const { limit = this.#spec.limit } = read
    if (result.state === 'exceeded' && result.row)
      throw new QuotaExceededError({
        ...readUse(result.row, limit),
        quota: this.name,
        subject: result.subject,
        requested: amount,
        retryAfterMs: toMs(result.freeInUs),
      })
    if (result.state !== 'settled') throw this.#ended(id, result, 'settled')
    return readUse(result.row, limit)
  }

  /**
   * Gives back a reservation by its id, in any process, as `hold.void` does. A reservation that has run out, or was given back before, is not an error.
   *
   * @example
   * await tokens.void(requestId)
   */
  async void(id: string, options: Pick<SubjectOptions, 'tx'> = {}): Promise<void> {
    const result = await this.#store.resolve(id, 'void', null, voidOptions.read(options))
    if (result.state !== 'void')
      throw this.#ended(id, result, result.was === 'taken' ? 'given back; refund it instead' : 'given back')
  }

  /**
   * Gives back the amount that was taken under an id, or a part of it, once. The amount returns to the window that it was taken from. If that window is
   * over, the current window does not change. `replayed` is true if an earlier call has refunded it.
   *
   * @example
   * const { replayed } = await points.refund(`event-${event.id}`)
   */
  async refund(id: string, options: RefundOptions = {}): Promise<QuotaRefund> {
    const { amount, tx } = refundOptions.read(options)
    const result = await this.#store.resolve(id, 'refund', amount ?? null, { tx })
    if (result.state === 'too much')
      throw new InvalidInputError(
        'amount',
        `must be at most the ${result.amount} that were taken, not ${amount}`,
      )
    if (result.state !== 'refunded' && result.state !== 'already') throw this.#ended(id, result, 'refunded')
    return { replayed: result.state === 'already' }
  }

  /**
   * Returns how much is used and left at this moment. The numbers may be out of date when you act on them. Only `take` decides.
   *
   * @example
   * const { used, remaining } = await points.peek(child)
   */
  async peek(subject: string, options: SubjectOptions = {}): Promise<QuotaUse> {
    const read = subjectOptions.read(options)
    return readUse(await this.#store.peek(subject, read), read.limit ?? this.#spec.limit)
  }

  /**
   * Compares each counter with the entries of its window, and returns the counters that differ. Entries belong to takes with an id and to reservations.
   * The list is empty if all is well, and has at most 1,000 items on a page.
   *
   * `verify` reads all entries of the quota, even for one subject.
   *
   * @example
   * const { items: drifts } = await points.verify()
   * if (drifts.length > 0) console.error('counters and entries differ', drifts)
   */
  async verify(filter: QuotaFilter = {}, page: PageOptions = {}): Promise<Page<QuotaDrift>> {
    const { subject } = quotaFilter.read(filter)
    const { limit, cursor } = pageOptions.read(page)
    const [after] = decodeCursor('drifts', cursor, [ANY_TEXT]) ?? []
    const rows = await this.#store.findDrifts(subject, after, limit + 1)
    return toPage('drifts', rows, limit, (row) => [`${row.subject}`], readDrift)
  }

  /**
   * Makes a claim for `dibs.acquire`, which takes this amount together with other claims, all or none. Under a lease, the amount is reserved first, and
   * settled at the end.
   *
   * @example
   * await dibs.acquire([claim.lock('till-7'), points.claim(child, 10)], async (tx, [till, use]) => {
   *   await tx.query('insert into award (child, left_over) values ($1, $2)', [child, use.remaining])
   * })
   */
  claim(subject: string, amount = 1, options: Omit<TakeOptions, 'tx'> = {}): QuotaClaim {
    const request = this.#spec.request(subject, amount, quotaClaimOptions.read(options))
    const { keepMs, ledger } = this.#spec
    const { limit, per, id } = request
    return new QuotaClaim(this.name, request.subject, limit, request.amount, {
      ...(per === null ? {} : { per: JSON.parse(per) }),
      ...(id === null ? {} : { id }),
      ledger,
      keepMs: keepMs === null ? null : Number(keepMs),
    })
  }

  /** With a ledger, each take has an id. */
  #request(subject: string, amount: number, options: TakeOptions): QuotaRequest {
    const request = this.#spec.request(subject, amount, options)
    return request.id === null && this.#spec.ledger ? { ...request, id: randomUUID() } : request
  }

  async #take(request: QuotaRequest, tx: Tx | undefined): Promise<QuotaAttempt> {
    const { id, limit } = request
    const { take, row } = await this.#store.take(request, tx)
    if (take.state === 'refused') return this.#refuse(request, take, row)
    const replayed = this.#isKnown(take, `${id}`, 'taken')
    return { ok: true, ...useAfter(take, row, limit), ...(id === null ? {} : { id }), replayed }
  }

  async #reserve(
    request: QuotaRequest,
    { leaseMs, limit, timeZone, tx }: ReserveOptions & { readonly leaseMs: number },
  ): Promise<ReserveAttempt> {
    const id = request.id ?? randomUUID()
    const { take, row } = await this.#store.reserve({ ...request, id }, leaseMs, tx)
    if (take.state === 'refused') return this.#refuse(request, take, row)
    const replayed = this.#isKnown(take, id, 'held')
    const leaseUntil = dateFromMicros(String(take.expiresAt))
    return {
      ok: true,
      hold: new Hold(this, id, request.amount, leaseUntil, replayed, { limit, timeZone, tx }),
    }
  }

  /** Refuses an amount that can never fit, before anything is sent. With an id, the amount may have been taken before, under a higher limit. */
  #checkFits({ subject, amount, limit }: QuotaRequest, { id }: TakeOptions): void {
    if (id === undefined && amount > limit) throw this.#neverFits(subject, amount, limit)
  }

  /** Returns true if an earlier call has used the id in the same way. */
  #isKnown({ state, entry }: TakeResult, id: string, expected: 'taken' | 'held'): boolean {
    if (state === 'mismatch') throw quotaMismatch(this.name, id)
    if (state === 'known' && entry !== expected)
      throw new HoldEndedError(
        this.name,
        id,
        entry ?? 'unknown',
        expected === 'taken' ? 'taken again' : 'reserved again',
      )
    return state === 'known'
  }

  #refuse({ subject, limit, amount }: QuotaRequest, take: TakeResult, row: QuotaRow): QuotaRefusal {
    const use = useAfter(take, row, limit)
    emit('dibs:quota.refused', {
      ...this.#database.origin,
      template: templateOf(this.name),
      keyHash: hashKey(`${this.name}\n${subject}`),
      requested: amount,
      remaining: use.remaining,
    })
    const retryAfterMs = amount > limit ? undefined : toMs(take.freeInUs)
    return { ok: false, ...use, requested: amount, ...(retryAfterMs === undefined ? {} : { retryAfterMs }) }
  }

  #explain(subject: string, refusal: QuotaRefusal): QuotaExceededError | NeverFitsError {
    const { limit, used, held, requested, resetsAt, retryAfterMs } = refusal
    if (requested > limit) return this.#neverFits(subject, requested, limit)
    const quota = this.name
    return new QuotaExceededError({ quota, subject, limit, used, held, requested, resetsAt, retryAfterMs })
  }

  #neverFits(subject: string, requested: number, limit: number): NeverFitsError {
    return new NeverFitsError(`quota "${this.name}" of "${subject}"`, requested, limit)
  }

  #ended(id: string, { state, was }: ResolveResult, attempted: string): HoldEndedError {
    return new HoldEndedError(this.name, id, state === 'absent' ? 'unknown' : was, attempted)
  }
}

trackJoinedMethods(Quota, 'quota', {
  ...{ take: 2, tryTake: 2, reserve: 2, tryReserve: 2 },
  ...{ settle: 2, void: 1, refund: 1, peek: 1 },
})

/** The use of a window after one take of a batch. */
const useAfter = ({ used, held }: TakeResult, row: QuotaRow, limit: number): QuotaUse =>
  readUse({ ...row, used, held }, limit)

const readDrift = (row: TextRow): QuotaDrift => ({
  subject: `${row.subject}`,
  used: Number(row.used) + Number(row.over),
  held: Number(row.held),
  listed: Number(row.listed),
  entriesTaken: Number(row.entries_taken),
  entriesHeld: Number(row.entries_held),
})
