import type pg from 'pg'
import { type Acquire, acquireOn, type TryAcquire, tryAcquireOn } from './claims/acquire.js'
import type { Claim } from './claims/claim.js'
import { Claims } from './claims/claims.js'
import { Kv } from './claims/kv.js'
import { onceOn, tryOnceOn, withoutDetails } from './claims/once.js'
import type { Once, OnceDetailed, TryOnce } from './claims/once-spec.js'
import {
  Operation,
  type OperationAnswer,
  type OperationOptions,
  type Unfinished,
} from './claims/operation.js'
import { Quota } from './claims/quota.js'
import type { QuotaOptions } from './claims/quota-spec.js'
import { RateLimit } from './claims/rate-limit.js'
import type { RateLimitOptions } from './claims/rate-spec.js'
import {
  type Singleton,
  singletonOn,
  type TrySingleton,
  trySingletonOn,
  type VoidSlot,
  voidSlotOn,
} from './claims/singleton.js'
import { ClosedError, ConnectionLostError, InvalidInputError } from './errors.js'
import { Engine } from './jobs/engine.js'
import type { Handled } from './jobs/handlers.js'
import { JobAdder } from './jobs/job-adder.js'
import type { JobDefinitions } from './jobs/job-spec.js'
import { Jobs } from './jobs/jobs.js'
import { Queues } from './jobs/queues.js'
import { startWorker } from './jobs/work.js'
import type { Worker, WorkOptions } from './jobs/work-options.js'
import { Workers } from './jobs/workers.js'
import { Election, type ElectOptions, type Take } from './locks/election.js'
import type { SingleFlight } from './locks/flight-spec.js'
import type { Lock, LockOptions, TryLockOptions } from './locks/lock.js'
import { LockDesk, type WithLock } from './locks/lock-desk.js'
import { Locks } from './locks/locks.js'
import { Flights } from './locks/single-flight.js'
import { type Health, readHealth } from './ops/health.js'
import {
  checkMaintain,
  type MaintainOptions,
  Maintenance,
  type MaintenanceReport,
} from './ops/maintenance.js'
import type { MaintenanceLoop } from './ops/maintenance-loop.js'
import { CLOSE_MS } from './postgres/connections.js'
import { Database } from './postgres/database.js'
import { newOrigin } from './postgres/events.js'
import type { Row } from './postgres/executor.js'
import { bindInstance } from './postgres/instances.js'
import { logEvents } from './postgres/log-events.js'
import { checkMigrations, migrate } from './postgres/migrations/migrate.js'
import { trackJoined } from './postgres/open-calls.js'
import { checkOpenOptions, type OpenOptions } from './postgres/open-options.js'
import { END_MS } from './postgres/own-pool.js'
import { Rows } from './postgres/rows/rows.js'
import { inspectServer } from './postgres/server.js'
import { sleep } from './postgres/sleep.js'
import { statement } from './postgres/statement.js'
import { dateFromMicros } from './postgres/text-values.js'
import type { TransactionOptions } from './postgres/transaction.js'
import type { Transaction } from './postgres/transaction-types.js'
import { describeUrl } from './postgres/url.js'
import { Wakeups } from './postgres/wakeups.js'
import { findWayIn, type WayIn } from './postgres/way-in.js'
import { Aggregate } from './tables/aggregate.js'
import { type AggregateOptions, checkAggregate } from './tables/aggregate-spec.js'
import { Monitor } from './tables/monitor.js'
import type { MonitorOptions } from './tables/monitor-options.js'
import { TableRows } from './tables/table-rows.js'

const EMBEDDED_TRIES = 8

/** How long `close` waits for work that still runs if handlers go on after their `drainMs`: they ignore their signal. */
const IGNORED_CLOSE_MS = 4_000

const readClock = statement('select {schema}.micros({schema}.clock())::text as "micros"', { readOnly: true })

/**
 * The composition root: one instance for each database and schema, shared by the whole process.
 *
 * @example
 * await using dibs = await Dibs.open({ url: 'postgres://localhost/shop' })
 * await dibs.transaction(async (tx) => {
 *   await tx.query('update stock set left_over = left_over - 1 where sku = $1', ['apple'])
 * })
 */
export class Dibs implements AsyncDisposable {
  readonly schema: string
  /** The claims that are kept, for operators: `get`, `list`, `forget`. */
  readonly claims: Claims
  readonly #operations = new Map<string, Unfinished>()
  readonly #aggregates = new Map<string, Aggregate<object>>()
  readonly #monitors = new Map<string, Monitor>()
  readonly #rows: Rows
  readonly #maintenance: Maintenance
  readonly #stops = new Set<() => Promise<unknown>>()
  /** Fires when `close` waits no longer for what still runs. */
  readonly #closed = new AbortController()
  /** Safe reads and writes of rows in your own tables: `lock`, `update`, `insertOnce`, `transition`, `claim`, `adjust`, `lastWriteWins`. */
  readonly rows: TableRows
  /** Values by key, with versions and expiry. */
  readonly kv: Kv
  /** The locks that are held, for operators: `list`, `inspect`, `forceRelease`. */
  readonly locks: Locks
  readonly #lockDesk: LockDesk
  readonly #flights: Flights
  /** Queues of jobs, for operators: `pause`, `resume`, `list`. */
  readonly queues: Queues
  /** The workers of all processes, for operators: `list`. */
  readonly workers: Workers
  readonly #adder: JobAdder
  readonly #engine: Engine
  /** Stops a worker. True if a handler goes on all the same. */
  readonly #workers = new Set<() => Promise<boolean>>()
  readonly #way: WayIn
  readonly #database: Database
  readonly #wakeups: Wakeups
  readonly #stopLogging: () => void
  #closing: Promise<void> | undefined

  private constructor(database: Database, way: WayIn, options: OpenOptions, stopLogging: () => void) {
    this.schema = database.schema
    this.#way = way
    this.#database = database
    this.claims = new Claims(database)
    const onceDetailed = onceOn(database)
    this.onceDetailed = trackJoined('dibs.onceDetailed', 0, onceDetailed)
    this.once = trackJoined('dibs.once', 0, withoutDetails(onceDetailed))
    this.tryOnce = trackJoined('dibs.tryOnce', 0, tryOnceOn(database))
    this.acquire = trackJoined('dibs.acquire', 1, acquireOn(database))
    this.tryAcquire = trackJoined('dibs.tryAcquire', 1, tryAcquireOn(database))
    this.singleton = trackJoined('dibs.singleton', 0, singletonOn(database))
    this.trySingleton = trackJoined('dibs.trySingleton', 0, trySingletonOn(database))
    this.voidSlot = trackJoined('dibs.voidSlot', 0, voidSlotOn(database))
    const rows = new Rows(database)
    this.#rows = rows
    this.rows = new TableRows(rows)
    bindInstance(this, database)
    this.#maintenance = new Maintenance(database, {
      operations: this.#operations,
      aggregates: this.#aggregates,
      monitors: this.#monitors,
    })
    this.kv = new Kv(database)
    this.#wakeups = new Wakeups(database, { listen: options.listen ?? true })
    this.locks = new Locks(database, this.#wakeups)
    this.#lockDesk = new LockDesk(database, this.#wakeups)
    this.withLock = this.#lockDesk.withLock
    this.#flights = new Flights(this.#lockDesk.parts)
    this.singleFlight = this.#flights.singleFlight
    this.queues = new Queues(database, this.#wakeups)
    this.workers = new Workers(database)
    this.#adder = new JobAdder(database, this.#wakeups)
    this.#engine = new Engine(database, this.#wakeups)
    this.#stopLogging = stopLogging
  }

  /** Connects, checks the server and brings the schema up to date. Whatever is wrong is told within seconds. */
  static async open(options: OpenOptions = {}): Promise<Dibs> {
    checkOpenOptions(options)
    const { schema = 'dibs', prepared = true, logger, migrate: mode = 'auto', maintain = true } = options
    const origin = newOrigin(schema)
    const stopLogging = logEvents(logger, origin.instance)
    let way: WayIn | undefined
    let dibs: Dibs | undefined
    try {
      way = await findWayIn(options, origin)
      dibs = new Dibs(new Database(way.pool, { schema, prepared, origin }), way, options, stopLogging)
      await dibs.#start(mode)
      if (maintain) dibs.#maintenance.start(undefined, { isAutomatic: true })
      return dibs
    } catch (error) {
      // Callers must learn why `open` failed, also when closing fails too.
      await (dibs ?? way)?.close().catch(() => {})
      stopLogging()
      throw error
    }
  }

  async #start(mode: 'auto' | 'check' | 'off'): Promise<void> {
    await this.#inspect()
    if (mode === 'off') return
    const { migrations } = await import('./postgres/migrations/generated/migrations.js')
    if (mode === 'auto') await migrate(this.#database, migrations)
    if (mode === 'check') await checkMigrations(this.#database, migrations)
  }

  /** An embedded server that someone just killed is back soon. */
  async #inspect(): Promise<void> {
    for (let tries = 1; ; tries++) {
      try {
        return await inspectServer(this.#database, describeUrl(this.url))
      } catch (error) {
        if (!this.#way.isEmbedded || !(error instanceof ConnectionLostError) || tries === EMBEDDED_TRIES)
          throw error
        await sleep(200 * tries)
      }
    }
  }

  /**
   * Where it is connected to, password included, so it is no field that a log would show; undefined if a pool was
   * given that does not say.
   */
  get url(): string | undefined {
    return this.pool.options.connectionString
  }

  /** The pool that everything runs on. */
  get pool(): pg.Pool {
    return this.#database.pool
  }

  /**
   * Runs `fn` in a transaction. When it meets a conflict with another transaction (40001, 40P01 or a
   * `ConflictError`), it runs again from its start, so `fn` must do nothing outside the database that may not be
   * repeated: that belongs in `tx.afterCommit`.
   *
   * Returning commits, throwing rolls back. `CommitOutcomeUnknownError` says that the answer to COMMIT was lost.
   *
   * @example
   * const left = await dibs.transaction(
   *   async (tx) => {
   *     const { rows } = await tx.query<{ n: number }>('select left_over as n from stock where sku = $1', [sku])
   *     const n = (rows[0]?.n ?? 0) - 1
   *     if (n < 0) throw new BusinessRuleError('sold out')
   *     await tx.query('update stock set left_over = $2 where sku = $1', [sku, n])
   *     tx.afterCommit(() => console.log(`${n} left`))
   *     return n
   *   },
   *   { isolation: 'serializable', deadlineMs: 5_000, maxAttempts: 5 },
   * )
   */
  transaction<T>(fn: (tx: Transaction) => Promise<T>, options?: TransactionOptions): Promise<T> {
    return this.#database.transaction(fn, options)
  }

  /**
   * Runs `fn` once for a key; whoever calls again with it gets the same answer. `scope` says what keys belong to,
   * `fingerprint` guards against a key that is used for another request.
   *
   * By default claim, writes and outcome commit together. In a transaction of its own, what `fn` writes to this database is there
   * exactly once for each key, for as long as the outcome is kept; in yours (`tx`) too, unless you catch its error and commit. `fn` may run more than once, when it failed
   * or was rolled back. A second call waits for the first.
   *
   * For effects outside of the database use `mode: 'leased'`: the claim commits first and is held by a lease; `fn` gets the
   * claim, and hands `claim.idempotencyKey` on. Such an effect takes place at least once, unless you say to hold.
   *
   * @example
   * const order = await dibs.once({ scope: ['orders', tenant], key, fingerprint: body }, async (tx) => {
   *   const { rows } = await tx.query<{ id: string }>('insert into orders (item) values ($1) returning id', [body.item])
   *   return { id: rows[0]?.id }
   * })
   *
   * const payment = await dibs.once({ scope: 'payments', key, mode: 'leased' }, (claim) =>
   *   bank.pay(10, claim.idempotencyKey),
   * )
   */
  readonly once: Once

  /**
   * The same, and how the answer came about.
   *
   * @example
   * const { value, replayed } = await dibs.onceDetailed({ scope: 'orders', key }, async (tx) => {
   *   await tx.query('insert into orders (key) values ($1)', [key])
   *   return { key }
   * })
   * if (replayed) response.setHeader('Idempotency-Replayed', 'true')
   */
  readonly onceDetailed: OnceDetailed

  /**
   * As `onceDetailed`, but returns `{ ok: false }` in place of an error while another caller works on the key.
   *
   * @example
   * const attempt = await dibs.tryOnce({ scope: 'imports', key, mode: 'leased' }, (claim) => bank.pay(10, claim.idempotencyKey))
   * if (!attempt.ok) console.log(`another process is at it, come back in ${attempt.retryAfterMs} ms`)
   */
  readonly tryOnce: TryOnce

  /**
   * Names an operation on the world outside. Its input is stored with its claim, so that `maintain` in any process that has
   * defined it finishes what a dead one began. Defining starts nothing.
   *
   * @example
   * const charge = dibs.operation('charge', { maxAttempts: 3 }, async (input: { amount: number }, claim) =>
   *   bank.pay(input.amount, claim.idempotencyKey),
   * )
   * const payment = await charge.run({ amount: 10 }, { key })
   */
  operation<I, T, R = unknown, Raw = I>(
    name: string,
    options: OperationOptions<I, R, Raw>,
    fn: (input: I, claim: Claim) => Promise<T>,
  ): Operation<Raw, OperationAnswer<R, T>> {
    if (this.#operations.has(name))
      throw new InvalidInputError('name', `is the name of another operation: "${name}"`)
    const operation = new Operation<Raw, OperationAnswer<R, T>>(this.#database, name, options as never, fn)
    this.#operations.set(name, operation)
    return operation
  }

  /**
   * Does a thing once in each period: one report a day, one vote a week, one run for each time of a cron expression. Whoever comes
   * later in the same period is `SingletonConflictError`, which says who was first and what came of it. Which period it is, the
   * database's clock decides; the function is told (`slot`).
   *
   * As with `once`, slot, writes and outcome commit together; for effects outside of the database use `mode: 'leased'`.
   *
   * @example
   * const log = await dibs.singleton(
   *   { scope: ['prayer', child], per: 'day', timeZone: 'Asia/Karachi', holder: parent },
   *   async (tx, slot) => {
   *     await tx.query('insert into log (child, day) values ($1, $2)', [child, slot.key])
   *     return { child, slot }
   *   },
   * )
   */
  readonly singleton: Singleton

  /**
   * As `singleton`, but returns `{ ok: false }` in place of an error when another caller was first: for a timer that fires in every pod.
   * Other errors are thrown, also those of `fn`.
   *
   * @example
   * const report = await dibs.trySingleton({ scope: 'daily-report', per: 'day' }, async (tx, slot) => {
   *   await tx.query('insert into report (day) values ($1)', [slot.key])
   * })
   * if (!report.ok) console.log(`${report.holder ?? 'another pod'} was first: ${report.state}`)
   */
  readonly trySingleton: TrySingleton

  /**
   * Undoes what was done in a slot, once: of any number of callers that name the same use of it (`slot.id`) one is told so and
   * runs `fn`, in the same transaction. The slot is free again, or stays taken (`frees: false`). A slot that was kept though its
   * transaction failed has nothing to undo, and `fn` is not run.
   *
   * @example
   * const { ok } = await dibs.voidSlot({ scope: ['prayer', child], slot }, async (tx) => {
   *   await tx.query('update account set points = points - 5 where child = $1', [child])
   * })
   */
  readonly voidSlot: VoidSlot

  /**
   * Claims several things of different kinds, all or none, in one round trip: an idempotency key, slots, quotas, rate limits, locks. If
   * one is refused, `AcquireRefusedError` has the reason of each that is in the way, and nothing was claimed. If the
   * idempotency key has its outcome, that is the answer, and nothing else is looked at.
   *
   * Claims, writes and outcome commit together; for effects outside of the database use `{ mode: 'leased' }`.
   *
   * @example
   * const points = dibs.quota('daily-points', { limit: 50, per: 'day', timeZone: 'Europe/Berlin' })
   * const event = await dibs.acquire(
   *   [
   *     claim.once({ scope: 'events', key, fingerprint: body }),
   *     claim.singleton({ scope: ['prayer', child], per: 'day', timeZone: 'Europe/Berlin', holder: parent }),
   *     points.claim(child, 10),
   *   ],
   *   async (tx, [once, slot, use]) => {
   *     await tx.query('insert into event (id, day) values ($1, $2)', [once.id, slot.key])
   *     return { id: once.id, left: use.remaining }
   *   },
   * )
   */
  readonly acquire: Acquire

  /**
   * As `acquire`, but returns `{ ok: false, failures }` in place of `AcquireRefusedError`. Other errors are thrown, also those of `fn`.
   *
   * @example
   * const attempt = await dibs.tryAcquire([points.claim(child, 10), claim.lock('till-7')], async (tx) => {
   *   await tx.query('insert into award (child) values ($1)', [child])
   * })
   * if (!attempt.ok) for (const { kind, error } of attempt.failures) console.log(kind, error.message)
   */
  readonly tryAcquire: TryAcquire

  /**
   * Takes a lock that one holds at a time (or as many as `permits`), in all processes, and waits for it if another has it. It is renewed by itself until it is released; when its
   * holder dies it runs out. A holder that stood still may wake up late, so whatever it writes names the lock: `lock.guard(tx)` in this database, `lock.fence` elsewhere.
   *
   * `BusyError` if it could not be had within `waitMs`; `GuardedError` if a transaction of its last holder is still open.
   *
   * @example
   * await using lock = await dibs.lock(keyOf('till', 7), { leaseMs: 10_000, waitMs: 5_000 })
   * await dibs.transaction(async (tx) => {
   *   await lock.guard(tx)
   *   await tx.query('update till set open = false where id = 7')
   * })
   */
  lock(name: string, options?: LockOptions): Promise<Lock> {
    return this.#lockDesk.lock(name, options)
  }

  /**
   * The same without waiting: null if another has it.
   *
   * @example
   * const lock = await dibs.tryLock('nightly-report')
   * if (lock === null) return
   */
  tryLock(name: string, options?: TryLockOptions): Promise<Lock | null> {
    return this.#lockDesk.tryLock(name, options)
  }

  /**
   * Runs `fn` under a lock, and gives that back whatever comes of it. If the lock was lost meanwhile it is rejected with a `FenceLostError`,
   * also if `fn` has returned: others may have been at the same work.
   *
   * @example
   * await dibs.withLock('nightly-report', { leaseMs: 10_000 }, async (lock) => {
   *   const rows = await fetch(source, { signal: lock.signal })
   *   await dibs.transaction(async (tx) => {
   *     await lock.guard(tx)
   *     await tx.query('insert into report (body) values ($1)', [await rows.text()])
   *   })
   * })
   */
  readonly withLock: WithLock

  /**
   * Makes this process a candidate, until `stop` or `close`: of all candidates of one name, in all processes, one leads at a time. It stops before another may start, as long as it minds
   * `term.signal`; what it writes is safe in any case if it is guarded by the term. Leading is to hold the lock `keyOf('leader', name)`.
   *
   * @example
   * const election = dibs.elect('scheduler', {
   *   leaseMs: 15_000,
   *   onElected: async ({ epoch, signal }) => {
   *     console.log(`leader in epoch ${epoch}`)
   *     while (!signal.aborted) await fetch(source, { signal })
   *   },
   *   onLost: (term, reason) => console.log(`leads no more: ${reason}`),
   * })
   * process.once('SIGTERM', () => void election.stop())
   */
  elect(name: string, options: ElectOptions = {}): Election {
    if (this.#closing) throw new ClosedError()
    const take: Take = (spec) => this.#lockDesk.await(spec)
    const election = new Election(this.#database, take, name, options, this.#closed.signal)
    const stop = (): Promise<void> => election.stop()
    this.#stops.add(stop)
    void election.ended.then(() => this.#stops.delete(stop))
    return election
  }

  /**
   * Loads a value once for all who ask for it at a time, in all processes: one runs `load`, the others wait and are given what comes of it. With `ttlMs` it is
   * kept, with `staleMs` given on while one of them loads another in the background. If whoever loads dies, the next does; if it is late, what it has loaded is not kept.
   *
   * `load` may run more than once at a time where the lead was lost meanwhile, so it should only read. `BusyError` if the load of another takes longer than `waitMs`.
   *
   * @example
   * const rates = await dibs.singleFlight('fx:EUR', { ttlMs: 60_000, staleMs: 600_000 }, async ({ signal }) => {
   *     const response = await fetch('https://example.com/rates/EUR', { signal })
   *     return (await response.json()) as { usd: number }
   *   })
   * console.log(rates.usd)
   *
   * await dibs.singleFlight.forget('fx:EUR')
   */
  readonly singleFlight: SingleFlight

  /**
   * Names what a parent row keeps of its children: counts, sums, the latest of something. Defining sends nothing. All who share the tables should say the same under the
   * same name.
   *
   * @example
   * const totals = dibs.aggregate('order-totals', {
   *   parent: 'orders',
   *   child: 'order_line',
   *   foreignKey: 'order_id',
   *   columns: { lines: 'count(*)', open_lines: "count(*) filter (where status = 'open')" },
   * })
   * await totals.recompute(orderId)
   */
  aggregate<R extends object = Row>(name: string, options: AggregateOptions): Aggregate<R> {
    const spec = checkAggregate(name, options)
    if (this.#aggregates.has(name))
      throw new InvalidInputError('name', `is the name of another aggregate: "${name}"`)
    const aggregate = new Aggregate<R>(this.#rows, spec)
    this.#aggregates.set(name, aggregate as Aggregate<object>)
    return aggregate
  }

  /**
   * Names a rule for rows of a table of yours that are stuck: in the state of being worked on, and not heard of for too long, since whoever had them is gone. Each run puts
   * them back or gives them up, in batches that wait for nobody; any number of processes may run it at once. A row whose `leaseColumn` says that it is
   * alive is never touched. Defining starts nothing.
   *
   * @example
   * const monitor = dibs.monitor('stuck-items', {
   *   table: 'queue_items',
   *   stuck: 'PROCESSING',
   *   timeColumn: 'updated_at',
   *   olderThanMs: 300_000,
   *   leaseColumn: 'lease_until',
   *   fenceColumn: 'fence',
   *   action: 'requeue',
   *   requeueTo: 'PENDING',
   *   attemptsColumn: 'attempts',
   *   maxAttempts: 3,
   *   failTo: 'FAILED',
   *   errorColumn: 'error',
   * })
   * const { requeued, failed, oldestMs } = await monitor.run()
   * console.log(requeued, failed, oldestMs)
   */
  monitor<R extends object = Row>(name: string, options: MonitorOptions<R>): Monitor {
    const monitor = new Monitor(this.#database, this.#rows, name, options as MonitorOptions<never>)
    if (this.#monitors.has(name))
      throw new InvalidInputError('name', `is the name of another monitor: "${name}"`)
    this.#monitors.set(name, monitor)
    return monitor
  }

  /**
   * Names a limit that many share: of points in a day, of tokens in a month, of pieces in stock. Defining starts nothing.
   *
   * @example
   * const points = dibs.quota('daily-points', { limit: 50, per: 'day', timeZone: 'Europe/Berlin' })
   * await points.take(child, 5)
   *
   * const stock = dibs.quota('stock', { limit: 100 })
   * const hold = await stock.reserve(sku, 1, { leaseMs: 600_000 })
   * await hold.settle()
   */
  quota(name: string, options: QuotaOptions): Quota {
    return new Quota(this.#database, name, options)
  }

  /**
   * Names a rate limit: so much per subject and period, whichever process takes. Defining sends nothing; limit and burst may
   * change from one release to the next, and what was used so far still counts.
   *
   * @example
   * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
   * const { remaining } = await api.take('tenant:7')
   */
  rateLimit(name: string, options: RateLimitOptions): RateLimit {
    return new RateLimit(this.#database, name, options)
  }

  /**
   * Names kinds of jobs: what each takes, where it waits, how it is tried again. Adding and running them is typed by their names. Defining sends nothing.
   *
   * A job runs at least once, and each attempt has one recorded outcome. What a handler writes through `ctx.tx` (`transactional: true`) is there exactly once for a job that
   * succeeded.
   *
   * @example
   * const jobs = dibs.jobs({
   *   email: job<{ to: string }>({ queue: 'mail', maxAttempts: 3 }),
   *   report: { input: z.object({ day: z.string() }), timeoutMs: 60_000, transactional: true },
   * })
   * await jobs.add('email', { to: 'ann@example.org' })
   */
  jobs<const D extends JobDefinitions>(definitions: D): Jobs<D> {
    const work = (parts: readonly Handled[], options?: WorkOptions) => this.work(parts, options)
    return new Jobs(
      { database: this.#database, wakeups: this.#wakeups, adder: this.#adder, work },
      definitions,
    )
  }

  /**
   * Runs jobs in this process, until `stop` or `close`. All workers of an instance share three connections that handlers cannot starve, one heartbeat and one completer.
   *
   * @example
   * const worker = await dibs.work([jobs.handle({ email: async (input, ctx) => mailer.send(input.to, ctx.signal) })], {
   *   concurrency: 20,
   * })
   * await worker.stop({ drainMs: 25_000 }) // `close()` stops it too
   */
  async work(parts: readonly Handled[], options: WorkOptions = {}): Promise<Worker> {
    if (this.#closing) throw new ClosedError()
    const worker = startWorker(this.#engine, parts, options)
    const stop = async (): Promise<boolean> => {
      const stopped = worker.stop()
      this.#database.finish(stopped)
      await stopped
      return worker.stats.running + worker.stats.stuck > 0
    }
    this.#workers.add(stop)
    this.#stops.add(stop)
    void worker.stopped.then(() => {
      this.#stops.delete(stop)
      this.#workers.delete(stop)
    })
    return worker
  }

  /**
   * Removes expired rows, finishes operations that dead processes have left, counts aggregates that were marked and runs the monitors. `Dibs.open` does so in
   * the background unless it was given `maintain: false`; call this for another interval, or to keep the process alive for it. All calls share one loop, which
   * ends with `close`. With `once`, one round to its end, whichever process's turn it is.
   *
   * @example
   * const maintenance = dibs.maintain()
   * await maintenance.stop() // `close()` stops it too
   *
   * const { operationsFinished } = await dibs.maintain({ once: true })
   */
  maintain(options: MaintainOptions & { readonly once: true }): Promise<MaintenanceReport>
  maintain(options?: MaintainOptions & { readonly once?: false | undefined }): MaintenanceLoop
  maintain(options: MaintainOptions = {}): Promise<MaintenanceReport> | MaintenanceLoop {
    const everyMs = checkMaintain(options)
    if (everyMs === undefined) return this.#maintenance.run()
    if (this.#closing) throw new ClosedError()
    return this.#maintenance.start(everyMs)
  }

  /**
   * The database's clock, which decides about every lease and window.
   *
   * @example
   * const skewMs = Date.now() - (await dibs.now()).getTime()
   */
  async now(): Promise<Date> {
    const [row] = await this.#database.send(readClock, [])
    return dateFromMicros(`${row?.micros}`)
  }

  /**
   * Whether the database answers and has our tables, for a health check. Takes four seconds at most, never throws.
   *
   * @example
   * const { ok, problem } = await dibs.health()
   * if (!ok) console.error(`unhealthy: ${problem}`)
   */
  health(): Promise<Health> {
    return readHealth(this.#database)
  }

  /**
   * Stops everything this instance started. Work that still runs is waited for, 30 seconds at most, then
   * it loses its connection; calls made later are `ClosedError`. Called from inside a transaction, it waits for itself.
   *
   * Workers have their `drainMs` first. If handlers go on after that, all is closed within ten more seconds. A timer or a socket of yours keeps the
   * process alive all the same, so exit when `close` has resolved.
   *
   * @example
   * const stop = () => dibs.close().then(() => process.exit(0), () => process.exit(1))
   * process.once('SIGTERM', stop).once('SIGINT', stop)
   */
  close(): Promise<void> {
    this.#closing ??= this.#close()
    return this.#closing
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #close(): Promise<void> {
    let endsAt = 0
    try {
      endsAt = await this.#stop()
    } finally {
      const waitMs = Math.max(END_MS, endsAt - performance.now())
      await this.#way.close(waitMs).finally(() => this.#stopLogging())
    }
  }

  /** Stops what uses the connections. Returns until when those have time to end, by `performance.now()`. */
  async #stop(): Promise<number> {
    let waitMs = CLOSE_MS
    if (this.#workers.size > 0) {
      // Handlers may use what is closed next.
      const goOn = await Promise.all([...this.#workers].map((stop) => stop()))
      if (goOn.includes(true)) waitMs = IGNORED_CLOSE_MS
    }
    const endsAt = performance.now() + waitMs
    // What they have begun is among the work that is waited for.
    for (const stop of this.#stops) void stop()
    void this.#maintenance.stop()
    this.#lockDesk.stopWaiting()
    this.#flights.stopWaiting()
    await this.#database.close(waitMs)
    this.#closed.abort()
    this.#engine.close()
    this.#lockDesk.close()
    this.#flights.close()
    await this.#wakeups.close()
    return endsAt
  }
}
