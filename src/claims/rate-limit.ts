import { BusyError, DatabaseError, DibsError, RateLimitedError } from '../errors.js'
import { checkAmount } from '../postgres/check-amount.js'
import { MAX_TIMER_MS } from '../postgres/check-duration.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { emit, isHeard } from '../postgres/events.js'
import type { Tx } from '../postgres/executor.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { bindInstance } from '../postgres/instances.js'
import { checkKey, hashKey } from '../postgres/key.js'
import { trackJoinedMethods } from '../postgres/open-calls.js'
import type { Statement } from '../postgres/statement.js'
import { type TextRow, type TextValue, textArray } from '../postgres/text-values.js'
import { RateClaim } from './acquire-claims.js'
import { Batches } from './batches.js'
import { LocalRates, type RateDecision } from './rate-local.js'
import { checkFits, checkRateSpec, type RateLimitOptions, type RateSpec, resetsAtOf } from './rate-spec.js'
import { peekRate, takeRate, takeRateJoined, takeRates } from './rate-statements.js'
import { StoreDown, StoreWatch } from './store-watch.js'

/** The SQLSTATE that `rate_take` raises if a row was made and forgotten at each of its tries. */
const GAVE_UP = 'DB503'
const RETRY_MS = 100
const CUT_MS = 100

/** The remaining amount of a rate limit for a subject. */
export interface RateLeft {
  readonly remaining: number
  /** When the subject is as if it had never taken anything, by this process's clock. */
  readonly resetsAt: Date
  /** True if the database could not be reached, and `ifDown` has decided. */
  readonly degraded: boolean
}

/** The result if a cost does not fit. Nothing was taken. */
export interface RateRefusal extends RateLeft {
  readonly ok: false
  readonly limit: number
  readonly cost: number
  /** How long until this cost fits, if nobody else takes. Missing if no wait helps: the cost is above the limit or the burst. */
  readonly retryAfterMs?: number
}

/** Result of `rateLimit.tryTake`. */
export type RateAttempt = (RateLeft & { readonly ok: true }) | RateRefusal

export interface RateTakeOptions {
  /** Your own open transaction. The take commits or rolls back with it. */
  readonly tx?: Tx | undefined
}

interface Asked {
  readonly subject: string
  readonly cost: number
}

type Decided = RateDecision & { readonly degraded: boolean }

/**
 * A limit for each subject and period, shared by all processes: `dibs.rateLimit`. Define a rate limit once and share it. Calls for one subject that arrive
 * while another is in flight then share one statement.
 *
 * @example
 * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
 * const { remaining } = await api.take('tenant:7')
 */
export class RateLimit {
  readonly #database: Database
  readonly #spec: RateSpec
  readonly #values: (subjects: string) => TextValue[]
  readonly #batches: Batches<Asked, RateDecision>
  /** Only for the `ifDown` policies that can decide without the database. */
  readonly #watch: StoreWatch | undefined
  readonly #local: LocalRates | undefined

  constructor(database: Database, name: string, options: RateLimitOptions) {
    const spec = checkRateSpec(name, options)
    const numbers = [spec.limit, spec.perUs, spec.capacity].map(String)
    bindInstance(this, database)
    this.#database = database
    this.#spec = spec
    this.#values = (subjects) => [spec.name, subjects, spec.rule, spec.algorithm, ...numbers]
    this.#batches = new Batches((asked, waitMs) => this.#send(asked, Math.min(waitMs, spec.waitMs)), {
      sendMany: (groups) => this.#sendMany(groups),
    })
    if (spec.ifDown !== 'fail') this.#watch = new StoreWatch(spec.downAfterMs)
    if (spec.ifDown === 'local') this.#local = new LocalRates(spec)
  }

  get name(): string {
    return this.#spec.name
  }

  /** The amount for each period. */
  get limit(): number {
    return this.#spec.limit
  }

  get perMs(): number {
    return this.#spec.perUs / 1_000
  }

  /**
   * Takes a cost, or throws `RateLimitedError` and takes nothing. A cost that can never fit throws `NeverFitsError`.
   *
   * @example
   * const uploads = dibs.rateLimit('uploads', { algorithm: 'gcra', limit: 600, perMs: 60_000, burst: 50 })
   * try {
   *   await uploads.take('tenant:7', 12)
   * } catch (error) {
   *   if (error instanceof RateLimitedError) console.log(`in ${error.retryAfterMs} ms`)
   * }
   */
  async take(subject: string, cost = 1, options: RateTakeOptions = {}): Promise<RateLeft> {
    checkFits(this.#spec, checkAmount('cost', cost))
    const attempt = await this.tryTake(subject, cost, options)
    if (!attempt.ok) {
      const { ok: _, degraded: __, retryAfterMs = 1, ...refused } = attempt
      throw new RateLimitedError({ rateLimit: this.name, subject, retryAfterMs, ...refused })
    }
    const { ok: _, ...left } = attempt
    return left
  }

  /**
   * As `take`, but returns `{ ok: false }` instead of an error if the cost does not fit. `retryAfterMs` is missing if the cost can never fit. `BusyError`
   * is thrown, because nobody then knows how much is left.
   *
   * @example
   * const api = dibs.rateLimit('api', { algorithm: 'sliding-window', limit: 100, perMs: 60_000 })
   * const attempt = await api.tryTake('tenant:7')
   * if (!attempt.ok) console.log(`${attempt.remaining} of ${attempt.limit} left`, attempt.retryAfterMs ?? 'no wait helps')
   */
  async tryTake(subject: string, cost = 1, options: RateTakeOptions = {}): Promise<RateAttempt> {
    checkOptions(options, ['tx'])
    const asked = { subject: checkKey('subject', subject), cost: checkAmount('cost', cost) }
    const { limit, capacity } = this.#spec
    if (cost > capacity) {
      this.#emitRefused(subject, { cost })
      return { ok: false, limit, cost, ...(await this.#leftOf(subject, options)) }
    }
    const decided = await (options.tx === undefined
      ? this.#takeAlone(asked)
      : this.#takeJoined(asked, options.tx))
    if (decided.granted) return { ok: true, ...toLeft(decided) }
    const retryAfterMs = Math.max(1, toMs(decided.retryAfterUs ?? 0))
    this.#emitRefused(subject, { cost, retryAfterMs })
    return { ok: false, limit, cost, retryAfterMs, ...toLeft(decided) }
  }

  /**
   * Returns what is left now, without taking or waiting. The next call that takes may find less.
   *
   * @example
   * const api = dibs.rateLimit('api', { algorithm: 'fixed-window', limit: 100, perMs: 60_000 })
   * const { remaining, resetsAt } = await api.peek('tenant:7')
   */
  async peek(subject: string, options: RateTakeOptions = {}): Promise<RateLeft> {
    checkOptions(options, ['tx'])
    const values = this.#values(checkKey('subject', subject))
    const { tx } = options
    if (tx !== undefined) return toLeft(readDecision(await this.#database.send(peekRate, values, tx)))
    return toLeft(
      await this.#orDegraded({ subject, cost: 0 }, async () =>
        readDecision(await this.#sendAlone(peekRate, values)),
      ),
    )
  }

  /**
   * Makes a claim for `dibs.acquire`, which takes this cost together with other claims, all or none. Under a lease, each attempt counts.
   *
   * @example
   * const api = dibs.rateLimit('api', { algorithm: 'gcra', limit: 600, perMs: 60_000 })
   * await dibs.acquire([claim.once({ scope: 'orders', key }), api.claim(tenant)], async (tx) => {
   *   await tx.query('insert into orders (key) values ($1)', [key])
   * })
   */
  claim(subject: string, cost = 1, options: Readonly<Record<string, never>> = {}): RateClaim {
    checkOptions(options, [])
    const { name, limit, rule, algorithm, perUs, capacity } = this.#spec
    const fields = { rule, algorithm, perUs, burst: capacity }
    const checked = checkFits(this.#spec, checkAmount('cost', cost))
    return new RateClaim(name, checkKey('subject', subject), limit, checked, fields)
  }

  #emitRefused(subject: string, refused: { readonly cost: number; readonly retryAfterMs?: number }): void {
    if (isHeard('dibs:rate.refused')) emit('dibs:rate.refused', { ...this.#originOf(subject), ...refused })
  }

  /** As `peek`, but does not fail without the database: the refusal of a cost that can never fit must not depend on it. */
  async #leftOf(subject: string, options: RateTakeOptions): Promise<RateLeft> {
    try {
      return await this.peek(subject, options)
    } catch (error) {
      if (options.tx !== undefined || !(error instanceof DibsError && error.retryable)) throw error
      return { remaining: 0, resetsAt: new Date(), degraded: true }
    }
  }

  async #takeJoined({ subject, cost }: Asked, tx: Tx): Promise<Decided> {
    const { waitMs } = this.#spec
    const values = [...this.#values(subject), `{${cost}}`, String(waitMs)]
    const rows = await this.#orBusy(() => this.#database.send(takeRateJoined, values, tx))
    if (JSON.parse(`${rows[0]?.told}`).state === 'busy') throw new BusyError(this.#turn, waitMs, RETRY_MS)
    return readDecision(rows)
  }

  #takeAlone(asked: Asked): Promise<Decided> {
    const { waitMs, downAfterMs, ifDown } = this.#spec
    // While it is unknown whether the database is down, the calls behind the first wait until that is known.
    const turnMs = ifDown === 'fail' ? waitMs : Math.min(waitMs + downAfterMs, MAX_TIMER_MS)
    return this.#orDegraded(asked, async () => ({
      ...(await this.#batches.add(asked.subject, asked, turnMs, this.#turn)),
      degraded: false,
    }))
  }

  /** Sends the calls for one subject in one statement. */
  async #send(asked: readonly Asked[], waitMs: number): Promise<readonly RateDecision[]> {
    const costs = `{${asked.map(({ cost }) => cost).join(',')}}`
    const values = [...this.#values(asked[0]?.subject ?? ''), costs, String(this.#database.boundWait(waitMs))]
    const [row] = await this.#orBusy(() => this.#sendAlone(takeRate, values))
    const told = JSON.parse(`${row?.told}`)
    if (told.state === 'busy') throw new BusyError(this.#turn, waitMs, RETRY_MS)
    return told
  }

  /** Each group is for one subject. This call does not wait for a subject that another caller has locked. */
  async #sendMany(
    groups: readonly (readonly Asked[])[],
  ): Promise<readonly (readonly RateDecision[] | undefined)[]> {
    const subjects = groups.map(([first], n) => ({ n, subject: first?.subject ?? '' }))
    subjects.sort((a, b) => Buffer.compare(Buffer.from(a.subject), Buffer.from(b.subject)))
    const costs = subjects.map(({ n }) => `{${groups[n]?.map(({ cost }) => cost).join(',')}}`)
    const values = [...this.#values(textArray(subjects.map(({ subject }) => subject))), textArray(costs)]
    const [row] = await this.#orBusy(() => this.#sendAlone(takeRates, values))
    const told: (RateDecision[] | { readonly state: 'busy' })[] = JSON.parse(`${row?.told}`)
    const decided: (readonly RateDecision[] | undefined)[] = []
    for (const [place, { n }] of subjects.entries()) {
      const one = told[place]
      decided[n] = Array.isArray(one) ? one : undefined
    }
    return decided
  }

  #sendAlone(statement: Statement, values: readonly TextValue[]): Promise<TextRow[]> {
    const watch = this.#watch
    if (!watch) return this.#database.sendWaiting(this.#spec.waitMs, statement, values)
    // Cancels the statement a little after the watch gave it up, so that a silent network does not keep a connection of the pool.
    const cutMs = this.#spec.downAfterMs + CUT_MS
    return watch.ask(() => this.#database.sendWithin(cutMs, statement, values))
  }

  /** Turns the end of a bounded wait into a `BusyError`. */
  async #orBusy<T>(send: () => Promise<T>): Promise<T> {
    const startedAt = performance.now()
    try {
      return await send()
    } catch (error) {
      const isGivenUp = error instanceof DatabaseError && error.sqlState === GAVE_UP
      const hasWaited = hasWaitedInVain(error)
      if (!isGivenUp && !hasWaited) throw error
      const waitedMs = Math.max(1, performance.now() - startedAt)
      throw new BusyError(this.#turn, waitedMs, RETRY_MS, { cause: error })
    }
  }

  /** Asks the database. If the database is down, does what `ifDown` says. */
  async #orDegraded({ subject, cost }: Asked, ask: () => Promise<Decided>): Promise<Decided> {
    try {
      this.#watch?.assertUp()
      return await ask()
    } catch (error) {
      if (!(error instanceof StoreDown)) throw error
      if (isHeard('dibs:rate.degraded')) {
        const policy = this.#local ? 'local' : 'allow'
        emit('dibs:rate.degraded', { ...this.#originOf(subject), policy, error: error.cause })
      }
      const unused = { granted: true, remaining: this.#spec.capacity - cost, resetUs: 0 }
      return { ...(this.#local?.take(subject, cost) ?? unused), degraded: true }
    }
  }

  get #turn(): string {
    return `a turn at rate limit "${this.#spec.name}"`
  }

  #originOf(subject: string) {
    const { name } = this.#spec
    return { ...this.#database.origin, template: `${name}:*`, keyHash: hashKey(`${name}:${subject}`) }
  }
}

trackJoinedMethods(RateLimit, 'rateLimit', { take: 2, tryTake: 2, peek: 1 })

const toMs = (us: number): number => Math.ceil(us / 1_000)

function toLeft({ remaining, resetUs, degraded }: Decided): RateLeft {
  return { remaining, resetsAt: resetsAtOf(resetUs), degraded }
}

function readDecision([row]: readonly TextRow[]): Decided {
  const [decision] = JSON.parse(`${row?.told}`)
  return { ...decision, degraded: false }
}
