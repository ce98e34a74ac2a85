import { randomUUID } from 'node:crypto'
import {
  BusyError,
  type FingerprintMismatchError,
  HoldEndedError,
  InProgressError,
  InvalidInputError,
  NeverFitsError,
  QuotaExceededError,
} from '../errors.js'
import { checkAmount, checkLimit } from '../postgres/check-amount.js'
import { checkDuration } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import type { Tx } from '../postgres/executor.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { checkKey, hashKey, templateOf } from '../postgres/key.js'
import { trackJoinedMethods } from '../postgres/open-calls.js'
import {
  ANY_TEXT,
  checkPageLimit,
  decodeCursor,
  PAGE_OPTIONS,
  type Page,
  type PageOptions,
  toPage,
} from '../postgres/page.js'
import type { Statement } from '../postgres/statement.js'
import { dateFromMicros, type TextRow, type TextValue, textArray } from '../postgres/text-values.js'
import { QuotaClaim } from './acquire-claims.js'
import { Batches } from './batches.js'
import { Hold, type ReserveAttempt } from './hold.js'
import {
  type Asked,
  type QuotaOptions,
  QuotaSpec,
  type ReserveOptions,
  type SubjectOptions,
  type TakeOptions,
} from './quota-spec.js'
import * as statements from './quota-statements.js'
import {
  type QuotaAttempt,
  type QuotaDrift,
  type QuotaFilter,
  type QuotaRefund,
  type QuotaRefusal,
  type QuotaTake,
  type QuotaUse,
  quotaMismatch,
  readUse,
  type ToldResolution,
  type ToldRow,
  type ToldTake,
  type ToldTakes,
} from './quota-told.js'

const RETRY_MS = 100
const HOLD_MS = 60_000
const TAKE_OPTIONS = ['id', 'limit', 'timeZone', 'tx']
const RESERVE_OPTIONS = [...TAKE_OPTIONS, 'leaseMs']

interface TakeItem {
  readonly asked: Asked & { readonly amount: number }
  readonly id: string | null
}

/**
 * A limit that many callers share and nobody exceeds: `dibs.quota`. Defining a quota starts nothing. Every process may define it, and may define it anew
 * with another limit.
 *
 * @example
 * const points = dibs.quota('daily-points', { limit: 50, per: 'day', timeZone: 'Europe/Berlin' })
 * const { remaining } = await points.take(child, 5)
 */
export class Quota {
  readonly #database: Database
  readonly #spec: QuotaSpec
  readonly #batches: Batches<TakeItem, Decided>

  constructor(database: Database, name: string, options: QuotaOptions) {
    this.#database = database
    this.#spec = new QuotaSpec(name, options)
    this.#batches = new Batches((items, waitMs) => this.#takeAlone(items, waitMs), {
      sendMany: (groups) => this.#takeMany(groups),
    })
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
    checkOptions(options, TAKE_OPTIONS)
    // With an id, the amount may have been taken before, under a higher limit.
    if (options.id === undefined) this.#checkFits(subject, amount, options)
    const attempt = await this.tryTake(subject, amount, options)
    if (!attempt.ok) throw this.#explain(subject, attempt)
    const { ok: _, ...taken } = attempt
    return taken
  }

  /** Refuses an amount that can never fit, before anything is sent. */
  #checkFits(subject: string, amount: number, options: TakeOptions): void {
    const limit = checkLimit('limit', options.limit ?? this.#spec.limit)
    if (checkAmount('amount', amount) > limit)
      throw this.#neverFits(checkKey('subject', subject), amount, limit)
  }

  #neverFits(subject: string, requested: number, limit: number): NeverFitsError {
    return new NeverFitsError(`quota "${this.name}" of "${subject}"`, requested, limit)
  }

  #explain(subject: string, refusal: QuotaRefusal): QuotaExceededError | NeverFitsError {
    const { limit, used, held, requested, resetsAt, retryAfterMs } = refusal
    if (requested > limit) return this.#neverFits(subject, requested, limit)
    const quota = this.name
    return new QuotaExceededError({ quota, subject, limit, used, held, requested, resetsAt, retryAfterMs })
  }

  /**
   * As `take`, but returns `{ ok: false }` instead of an error if the amount does not fit. `retryAfterMs` is missing if no wait helps: the amount is above
   * the limit, or a stock is sold out. `BusyError` is thrown, because nobody then knows how much is left.
   *
   * @example
   * const attempt = await points.tryTake(child, 5)
   * if (!attempt.ok) console.log(`${attempt.remaining} of ${attempt.limit} left`, attempt.retryAfterMs ?? 'no wait helps')
   */
  async tryTake(subject: string, amount = 1, options: TakeOptions = {}): Promise<QuotaAttempt> {
    checkOptions(options, TAKE_OPTIONS)
    const item = this.#item(subject, amount, options)
    const decided =
      options.tx === undefined
        ? await this.#batches.add(
            JSON.stringify([item.asked.subject, item.asked.limit, item.asked.per]),
            item,
            this.#spec.waitMs,
            this.#describe(subject),
          )
        : await this.#takeJoined(item, options.tx, null)
    return this.#readAttempt(item, decided)
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
    checkOptions(options, RESERVE_OPTIONS)
    if (options.id === undefined) this.#checkFits(subject, amount, options)
    const attempt = await this.tryReserve(subject, amount, options)
    if (attempt.ok) return attempt.hold
    throw this.#explain(subject, attempt)
  }

  /**
   * As `reserve`, but returns `{ ok: false }` instead of an error if the amount does not fit, as `tryTake` does.
   *
   * @example
   * const attempt = await tokens.tryReserve(tenant, 4_000, { leaseMs: 120_000 })
   * if (attempt.ok) await attempt.hold.settle((await model.ask(prompt)).tokens)
   * else console.log(`${attempt.remaining} left until ${attempt.resetsAt}`)
   */
  async tryReserve(subject: string, amount = 1, options: ReserveOptions = {}): Promise<ReserveAttempt> {
    checkOptions(options, RESERVE_OPTIONS)
    const { leaseMs = HOLD_MS, tx, id = randomUUID() } = options
    const holdMs = String(checkDuration('leaseMs', leaseMs))
    const item = this.#item(subject, amount, { ...options, id })
    const decided =
      tx === undefined
        ? (await this.#takeTogether([item], holdMs, this.#spec.waitMs))[0]
        : await this.#takeJoined(item, tx, holdMs)
    const { take, row } = decided ?? noAnswer()
    if (take.state === 'refused') {
      const attempt = this.#readAttempt(item, { take, row })
      return attempt.ok ? noAnswer() : attempt
    }
    if (take.state === 'mismatch') throw this.#mismatch(id)
    if (take.state === 'known' && take.entry !== 'held')
      throw new HoldEndedError(this.name, id, take.entry ?? 'unknown', 'reserved again')
    const { limit, timeZone } = options
    const leaseUntil = dateFromMicros(String(take.expiresAt))
    const hold = new Hold(this, id, amount, leaseUntil, take.state === 'known', { limit, timeZone, tx })
    return { ok: true, hold }
  }

  /**
   * Settles a reservation by its id, in any process, as `hold.settle` does. Takes `actual`, at most the reserved amount, and gives back the rest. A
   * repeated call with the same amount changes nothing.
   *
   * @example
   * await tokens.settle(requestId, answer.tokens)
   */
  async settle(id: string, actual: number, options: SubjectOptions = {}): Promise<QuotaUse> {
    checkOptions(options, ['limit', 'timeZone', 'tx'])
    const amount = checkAmount('actual', actual, 0)
    const told = await this.#resolve(id, 'settle', amount, options)
    if (told.state === 'too much')
      throw new InvalidInputError(
        'actual',
        `must be at most the ${told.asked} that were reserved, not ${actual}`,
      )
    const { limit = this.#spec.limit } = options
    if (told.state === 'exceeded' && told.row)
      throw new QuotaExceededError({
        ...readUse(told.row, limit),
        quota: this.name,
        subject: told.subject,
        requested: amount,
        retryAfterMs: toMs(told.freeInUs),
      })
    if (told.state !== 'settled') throw this.#ended(id, told, 'settled')
    return readUse(told.row, limit)
  }

  /**
   * Gives back a reservation by its id, in any process, as `hold.void` does. A reservation that has run out, or was given back before, is not an error.
   *
   * @example
   * await tokens.void(requestId)
   */
  async void(id: string, options: Pick<SubjectOptions, 'tx'> = {}): Promise<void> {
    checkOptions(options, ['tx'])
    const told = await this.#resolve(id, 'void', null, options)
    if (told.state !== 'void')
      throw this.#ended(id, told, told.was === 'taken' ? 'given back; refund it instead' : 'given back')
  }

  /**
   * Gives back the amount that was taken under an id, or a part of it, once. The amount returns to the window that it was taken from. If that window is
   * over, the current window does not change. `replayed` is true if an earlier call has refunded it.
   *
   * @example
   * const { replayed } = await points.refund(`event-${event.id}`)
   */
  async refund(
    id: string,
    options: { readonly amount?: number | undefined; readonly tx?: Tx | undefined } = {},
  ): Promise<QuotaRefund> {
    checkOptions(options, ['amount', 'tx'])
    const amount = options.amount === undefined ? null : checkAmount('amount', options.amount)
    const told = await this.#resolve(id, 'refund', amount, options)
    if (told.state === 'too much')
      throw new InvalidInputError(
        'amount',
        `must be at most the ${told.amount} that were taken, not ${amount}`,
      )
    if (told.state !== 'refunded' && told.state !== 'already') throw this.#ended(id, told, 'refunded')
    return { replayed: told.state === 'already' }
  }

  /**
   * Returns how much is used and left at this moment. The numbers may be out of date when you act on them. Only `take` decides.
   *
   * @example
   * const { used, remaining } = await points.peek(child)
   */
  async peek(subject: string, options: SubjectOptions = {}): Promise<QuotaUse> {
    checkOptions(options, ['limit', 'timeZone', 'tx'])
    const asked = this.#spec.read(subject, options)
    const values = [this.name, asked.subject, asked.per]
    const [row] =
      options.tx === undefined
        ? await this.#database.sendWaiting(0, statements.peekQuota, values)
        : await this.#database.send(statements.peekQuota, values, options.tx)
    return readUse(JSON.parse(`${row?.told}`) as ToldRow, asked.limit)
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
    checkOptions(filter, ['subject'])
    checkOptions(page, PAGE_OPTIONS)
    const subject = filter.subject === undefined ? null : checkKey('subject', filter.subject)
    const limit = checkPageLimit(page.limit)
    const [after = null] = decodeCursor('drifts', page.cursor, [ANY_TEXT]) ?? []
    const values = [this.name, subject, after, String(limit + 1)]
    const rows = await this.#database.send(statements.verifyQuota, values)
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
    checkOptions(options, ['id', 'limit', 'timeZone'])
    const asked = this.#spec.ask(subject, amount, options)
    const { keepMs, ledger } = this.#spec
    const id = options.id === undefined ? null : checkKey('id', options.id)
    return new QuotaClaim(this.name, asked.subject, asked.limit, asked.amount, {
      ...(asked.per === null ? {} : { per: JSON.parse(asked.per) }),
      ...(id === null ? {} : { id }),
      ledger,
      keepMs: keepMs === null ? null : Number(keepMs),
    })
  }

  #item(subject: string, amount: number, options: TakeOptions): TakeItem {
    const asked = this.#spec.ask(subject, amount, options)
    const id = options.id ?? (this.#spec.ledger ? randomUUID() : undefined)
    return { asked, id: id === undefined ? null : checkKey('id', id) }
  }

  /**
   * All items of a batch are for one subject under one limit. An id that another transaction is about to use for another subject must not delay the other
   * items. After a `BusyError`, each item is therefore sent alone.
   */
  async #takeAlone(items: readonly TakeItem[], waitMs: number): Promise<readonly (Decided | Error)[]> {
    try {
      return await this.#takeTogether(items, null, waitMs)
    } catch (error) {
      const hasIds = items.length > 1 && items.some(({ id }) => id !== null)
      if (!hasIds || !(error instanceof BusyError)) throw error
    }
    const answers: (Decided | Error)[] = []
    for (const item of items) {
      const [answer] = await this.#takeTogether([item], null, 1).catch((error: Error) => [error])
      answers.push(answer ?? noAnswer())
    }
    return answers
  }

  /** Each group is for one subject. This call does not wait for a subject that another caller has locked. */
  async #takeMany(
    groups: readonly (readonly TakeItem[])[],
  ): Promise<readonly (readonly Decided[] | undefined)[]> {
    const asked = groups.map((items, n) => ({ n, ...this.#asked(items) })).sort(bySubject)
    const [row] = await this.#database.sendWaiting(0, statements.takeQuotas, [
      this.name,
      JSON.stringify(asked),
      this.#spec.keepMs,
    ])
    const told: ToldTakes[] = JSON.parse(`${row?.told}`)
    const decided: (readonly Decided[] | undefined)[] = []
    for (const [place, { n }] of asked.entries()) decided[n] = readTakes(told[place])
    return decided
  }

  #asked(items: readonly TakeItem[]) {
    const [{ asked } = noAnswer()] = items
    const ids = items.map(({ id }) => id)
    return {
      subject: asked.subject,
      limit: asked.limit,
      ...(asked.per === null ? {} : { per: JSON.parse(asked.per) }),
      amounts: textArray(items.map((item) => String(item.asked.amount))),
      ...(ids.every((id) => id === null) ? {} : { ids: textArray(ids) }),
    }
  }

  async #takeTogether(
    items: readonly TakeItem[],
    holdMs: string | null,
    waitMs: number,
  ): Promise<readonly Decided[]> {
    const subject = this.#describe(`${items[0]?.asked.subject}`)
    const isPlain = holdMs === null && items.every(({ id }) => id === null)
    const told = await this.#ask<ToldTakes>(
      isPlain ? statements.takeQuotaPlain : statements.takeQuota,
      this.#takeValues(items, holdMs),
      waitMs,
      subject,
    )
    return told.takes.map((take) => ({ take, row: told.row }))
  }

  async #takeJoined(item: TakeItem, tx: Tx, holdMs: string | null): Promise<Decided> {
    const subject = this.#describe(item.asked.subject)
    const values = this.#takeValues([item], holdMs)
    const { takes, row } = await this.#ask<ToldTakes>(
      statements.takeQuotaJoined,
      values,
      this.#spec.waitMs,
      subject,
      tx,
    )
    return takes[0] ? { take: takes[0], row } : noAnswer()
  }

  #takeValues(items: readonly TakeItem[], holdMs: string | null): TextValue[] {
    const [{ asked } = noAnswer()] = items
    const amounts = items.map((item) => String(item.asked.amount))
    const ids = items.map(({ id }) => id)
    return [
      ...[this.name, asked.subject, String(asked.limit), asked.per, textArray(amounts)],
      ...[ids.every((id) => id === null) ? null : textArray(ids), holdMs, this.#spec.keepMs],
    ]
  }

  async #resolve(
    id: string,
    what: 'settle' | 'void' | 'refund',
    amount: number | null,
    { limit = this.#spec.limit, timeZone, tx }: SubjectOptions,
  ): Promise<ToldResolution> {
    const values = [
      ...[this.name, checkKey('id', id), what, amount === null ? null : String(amount), this.#spec.ifLate],
      ...[String(checkLimit('limit', limit)), this.#spec.perOf(timeZone)],
    ]
    const statement = tx === undefined ? statements.resolveQuota : statements.resolveQuotaJoined
    const subject = `"${id}" of quota "${this.name}"`
    const told = await this.#ask<ToldResolution>(statement, values, this.#spec.waitMs, subject, tx)
    if (told.state !== 'leased') return told
    throw new InProgressError(subject, toMs(told.freeInUs) ?? RETRY_MS, id, {
      message: `A call of dibs.acquire works under ${subject} just now, and ends it itself. Nothing was changed.`,
    })
  }

  /**
   * Bounds each wait. Outside of a transaction, the wait ends before the statement timeout. In a transaction, it ends in a way that leaves the transaction
   * usable.
   */
  async #ask<T extends object>(
    statement: Statement,
    values: readonly TextValue[],
    waitMs: number,
    subject: string,
    tx?: Tx,
  ): Promise<T> {
    const startedAt = performance.now()
    const busy = (cause?: unknown) =>
      new BusyError(subject, Math.max(1, Math.round(performance.now() - startedAt)), RETRY_MS, { cause })
    try {
      const boundMs = Math.max(1, tx === undefined ? this.#database.boundWait(waitMs) : waitMs)
      const all = [...values, String(boundMs)]
      const [row] =
        tx === undefined
          ? await this.#database.sendWaiting(boundMs, statement, all)
          : await this.#database.send(statement, all, tx)
      const told = JSON.parse(`${row?.told}`)
      if (told.state === 'busy') throw busy()
      return told
    } catch (error) {
      if (tx === undefined && hasWaitedInVain(error)) throw busy(error)
      throw error
    }
  }

  #readAttempt({ asked, id }: TakeItem, { take, row }: Decided): QuotaAttempt {
    if (take.state === 'mismatch') throw this.#mismatch(`${id}`)
    if (take.state === 'known' && take.entry !== 'taken')
      throw new HoldEndedError(this.name, `${id}`, take.entry ?? 'unknown', 'taken again')
    const use = readUse({ ...row, used: take.used, held: take.held }, asked.limit)
    if (take.state !== 'refused')
      return { ok: true, ...use, ...(id === null ? {} : { id }), replayed: take.state === 'known' }
    const { origin } = this.#database
    const key = `${this.name}\n${asked.subject}`
    emit('dibs:quota.refused', {
      ...origin,
      template: templateOf(this.name),
      keyHash: hashKey(key),
      requested: asked.amount,
      remaining: use.remaining,
    })
    const retryAfterMs = asked.amount > asked.limit ? undefined : toMs(take.freeInUs)
    return {
      ok: false,
      ...use,
      requested: asked.amount,
      ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    }
  }

  #mismatch(id: string): FingerprintMismatchError {
    return quotaMismatch(this.name, id)
  }

  #ended(id: string, told: ToldResolution, what: string): HoldEndedError {
    return new HoldEndedError(this.name, id, told.state === 'absent' ? 'unknown' : told.was, what)
  }

  #describe(subject: string): string {
    return `a turn at quota "${this.name}" of "${subject}"`
  }
}

trackJoinedMethods(Quota, 'quota', {
  ...{ take: 2, tryTake: 2, reserve: 2, tryReserve: 2 },
  ...{ settle: 2, void: 1, refund: 1, peek: 1 },
})

const readDrift = (row: TextRow): QuotaDrift => ({
  subject: `${row.subject}`,
  used: Number(row.used) + Number(row.over),
  held: Number(row.held),
  listed: Number(row.listed),
  entriesTaken: Number(row.entries_taken),
  entriesHeld: Number(row.entries_held),
})

interface Decided {
  readonly take: ToldTake
  readonly row: ToldRow
}

/** Returns undefined if another caller has locked the subject. */
const readTakes = (told: ToldTakes | undefined): readonly Decided[] | undefined =>
  told?.state === 'done' ? told.takes.map((take) => ({ take, row: told.row })) : undefined

/** Sorts subjects in one order for all callers. */
const bySubject = (a: { readonly subject: string }, b: { readonly subject: string }): number =>
  Buffer.compare(Buffer.from(a.subject), Buffer.from(b.subject))

/** Rounds up, because a retry that comes a millisecond too early would be refused again. */
const toMs = (us: number | null): number | undefined =>
  us === null ? undefined : Math.max(1, Math.ceil(us / 1_000))

function noAnswer(): never {
  throw new TypeError('The database did not answer as its functions do: is its schema of another release?')
}
