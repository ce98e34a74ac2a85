import type pg from 'pg'
import { type Acquire, acquireOn, type TryAcquire, tryAcquireOn } from './claims/acquire/acquire.js'
import type { Claim } from './claims/claim.js'
import { Claims } from './claims/claims.js'
import { Kv } from './claims/kv/kv.js'
import { onceOn, tryOnceOn, withoutDetails } from './claims/once/once.js'
import type { Once, OnceDetailed, TryOnce } from './claims/once/once-spec.js'
import {
  Operation,
  type OperationAnswer,
  type OperationOptions,
  type Unfinished,
} from './claims/once/operation.js'
import { Quota } from './claims/quota/quota.js'
import type { QuotaOptions } from './claims/quota/quota-spec.js'
import { RateLimit } from './claims/rate-limit/rate-limit.js'
import type { RateLimitOptions } from './claims/rate-limit/rate-spec.js'
import {
  type Singleton,
  singletonOn,
  type TrySingleton,
  trySingletonOn,
} from './claims/singleton/singleton.js'
import { type VoidSlot, voidSlotOn } from './claims/singleton/void-slot.js'
import { ClosedError, InvalidInputError } from './errors.js'
import { Engine } from './jobs/engine.js'
import type { Handled } from './jobs/handlers.js'
import { JobAdder } from './jobs/job-adder.js'
import type { JobDefinitions } from './jobs/job-definition.js'
import { Jobs } from './jobs/jobs.js'
import { Queues } from './jobs/queues.js'
import { startWorker } from './jobs/start-worker.js'
import type { Worker, WorkOptions } from './jobs/work-options.js'
import { Workers } from './jobs/workers.js'
import { Election, type ElectOptions, type Take } from './locks/election.js'
import type { Lock, LockOptions, TryLockOptions } from './locks/lock.js'
import { LockManager, type WithLock } from './locks/lock-manager.js'
import { Locks } from './locks/locks.js'
import { type Health, readHealth } from './ops/health.js'
import { type MaintainOptions, Maintenance, type MaintenanceReport, readMaintain } from './ops/maintenance.js'
import type { MaintenanceLoop } from './ops/round-scheduler.js'
import { CLOSE_MS } from './postgres/connections.js'
import { Database } from './postgres/database.js'
import { registerInstance } from './postgres/database-of.js'
import { newOrigin } from './postgres/events.js'
import type { Row } from './postgres/executor.js'
import { logEvents } from './postgres/log-events.js'
import { prepareDatabase } from './postgres/migrations/prepare-database.js'
import { trackJoined } from './postgres/open-calls.js'
import { type OpenOptions, readOpenOptions } from './postgres/open-options.js'
import { END_MS, openPoolSource, type PoolSource } from './postgres/pool-source.js'
import { statement } from './postgres/statement.js'
import { dateFromMicros } from './postgres/text-values.js'
import type { TransactionOptions } from './postgres/transaction.js'
import type { Transaction } from './postgres/transaction-types.js'
import { Wakeups } from './postgres/wakeups.js'
import type { SingleFlight } from './single-flight/flight-spec.js'
import { SingleFlightManager } from './single-flight/single-flight-manager.js'
import { Aggregate } from './tables/aggregate/aggregate.js'
import { type AggregateOptions, checkAggregate } from './tables/aggregate/aggregate-spec.js'
import { Monitor } from './tables/monitor/monitor.js'
import type { MonitorOptions } from './tables/monitor/monitor-options.js'
import { Rows } from './tables/row-executor.js'
import { TableRows } from './tables/table-rows.js'

/** How long `close` waits for calls if job handlers still run after their `drainMs`, because they ignore their signal. */
const IGNORED_CLOSE_MS = 4_000

const readClock = statement('select {schema}.micros({schema}.clock())::text as "micros"', { readOnly: true })

/**
 * The entry point: one instance for each database and schema, shared by the whole process.
 *
 * @example
 * await using dibs = await Dibs.open({ url: 'postgres://localhost/shop' })
 * await dibs.transaction(async (tx) => {
 *   await tx.query('update stock set left_over = left_over - 1 where sku = $1', ['apple'])
 * })
 */
export class Dibs implements AsyncDisposable {
  readonly schema: string
  /** Stored claims, for operators: `get`, `list`, `forget`, `resolve`. */
  readonly claims: Claims
  readonly #operations = new Map<string, Unfinished>()
  readonly #aggregates = new Map<string, Aggregate<object>>()
  readonly #monitors = new Map<string, Monitor>()
  readonly #rows: Rows
  readonly #maintenance: Maintenance
  readonly #elections = new Set<Election>()
  /** Fires when `close` stops waiting for running work. */
  readonly #closed = new AbortController()
  /** Safe reads and writes of rows in your own tables: `lock`, `update`, `insertOnce`, `transition`, `claim`, `adjust`, `lastWriteWins`. */
  readonly rows: TableRows
  /** Keys and values, with versions and expiry. */
  readonly kv: Kv
  /** Held locks, for operators: `list`, `inspect`, `forceRelease`. */
  readonly locks: Locks
  readonly #lockManager: LockManager
  readonly #singleFlightManager: SingleFlightManager
  /** Job queues, for operators: `pause`, `resume`, `list`. */
  readonly queues: Queues
  /** The workers of all processes, for operators: `list`. */
  readonly workers: Workers
  readonly #adder: JobAdder
  readonly #engine: Engine
  /** Stops a worker. Resolves to true if a handler still runs. */
  readonly #workers = new Set<() => Promise<boolean>>()
  readonly #source: PoolSource
  readonly #database: Database
  readonly #wakeups: Wakeups
  readonly #stopLogging: () => void
  #closing: Promise<void> | undefined

  private constructor(database: Database, source: PoolSource, listen: boolean, stopLogging: () => void) {
    this.schema = database.schema
    this.#source = source
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
    registerInstance(this, database)
    this.#maintenance = new Maintenance(database, {
      operations: this.#operations,
      aggregates: this.#aggregates,
      monitors: this.#monitors,
    })
    this.kv = new Kv(database)
    this.#wakeups = new Wakeups(database, { listen })
    this.locks = new Locks(database, this.#wakeups)
    this.#lockManager = new LockManager(database, this.#wakeups)
    this.withLock = this.#lockManager.withLock
    this.#singleFlightManager = new SingleFlightManager(this.#lockManager.context)
    this.singleFlight = this.#singleFlightManager.singleFlight
    this.queues = new Queues(database, this.#wakeups)
    this.workers = new Workers(database)
    this.#adder = new JobAdder(database, this.#wakeups)
    this.#engine = new Engine(database, this.#wakeups)
    this.#stopLogging = stopLogging
  }

  /** Connects, checks the server and brings the schema up to date. Fails within seconds, with an error that says what is wrong. */
  static async open(options?: OpenOptions): Promise<Dibs> {
    const { schema, prepared, logger, migrate, maintain, listen, ...connection } = readOpenOptions(options)
    const origin = newOrigin(schema)
    const stopLogging = logEvents(logger, origin.instance)
    let source: PoolSource | undefined
    try {
      source = await openPoolSource(connection, origin)
      const database = new Database(source.pool, { schema, prepared, origin })
      await prepareDatabase(database, migrate, source.isEmbedded)
      const dibs = new Dibs(database, source, listen, stopLogging)
      if (maintain) dibs.#maintenance.start(undefined, { isAutomatic: true })
      return dibs
    } catch (error) {
      // Callers must learn why `open` failed, even if closing fails too.
      await source?.close().catch(() => {})
      stopLogging()
      throw error
    }
  }

  /**
   * The connection string, with its password. A getter, so that logging the instance does not show it. Undefined if the given pool was made without a
   * `connectionString`.
   */
  get url(): string | undefined {
    return this.pool.options.connectionString
  }

  /** The pool of connections that all calls share. */
  get pool(): pg.Pool {
    return this.#database.pool
  }

  /**
   * Runs `fn` in a transaction. After a conflict with another transaction (40001, 40P01 or a `ConflictError`), `fn` runs again from its start. So effects
   * outside of the database belong in `tx.afterCommit`.
   *
   * Returning commits, throwing rolls back. `CommitOutcomeUnknownError` means that the answer to COMMIT was lost.
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
   * Runs `fn` once for a key. Every later call with the same key returns the same answer. `scope` names what the keys belong to. `fingerprint` refuses a key
   * that was used for another request.
   *
   * By default claim, writes and outcome commit together. What `fn` writes to this database is there exactly once for each key, as long as the outcome is kept
   * (`keepMs`). With your own `tx` this holds too, if you do not catch the error of `once` and then commit. `fn` may run again after it failed or was rolled back. A
   * second call waits for the first.
   *
   * For effects outside of the database use `mode: 'leased'`. The claim then commits first and is held by a lease. `fn` gets the claim and passes
   * `claim.idempotencyKey` on. Such an effect takes place at least once, unless `onAmbiguous` is `'hold'`.
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
   * As `once`, and also returns whether the answer is a stored one (`replayed`), its attempt and its time.
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
   * As `onceDetailed`, but returns `{ ok: false }` instead of an error while another caller works on the key.
   *
   * @example
   * const attempt = await dibs.tryOnce({ scope: 'imports', key, mode: 'leased' }, (claim) => bank.pay(10, claim.idempotencyKey))
   * if (!attempt.ok) console.log(`${attempt.holder ?? 'another caller'} works on it, try again in ${attempt.retryAfterMs} ms`)
   */
  readonly tryOnce: TryOnce

  /**
   * Defines an operation with an effect outside of the database. Its input is stored with its claim, so that any process that defines the operation can finish
   * what a dead process began. Defining starts nothing.
   *
   * @example
   * const charge = dibs.operation('charge', { maxAttempts: 3 }, async (input: { amount: number }, claim) =>
   *   bank.pay(input.amount, claim.idempotencyKey),
   * )
   * const payment = await charge.run({ amount: 10 }, { key })
   */
  operation<I, T>(
    name: string,
    fn: (input: I, claim: Claim) => Promise<T>,
  ): Operation<I, OperationAnswer<unknown, T>>
  operation<I, T, R = unknown, Raw = I>(
    name: string,
    options: OperationOptions<I, R, Raw> | undefined,
    fn: (input: I, claim: Claim) => Promise<T>,
  ): Operation<Raw, OperationAnswer<R, T>>
  operation<I, T, R = unknown, Raw = I>(
    name: string,
    ...given:
      | [fn: (input: I, claim: Claim) => Promise<T>]
      | [options: OperationOptions<I, R, Raw> | undefined, fn: (input: I, claim: Claim) => Promise<T>]
  ): Operation<Raw, OperationAnswer<R, T>> {
    const [options = {}, fn] = given.length === 1 ? [undefined, given[0]] : given
    checkNew('operation', this.#operations, name)
    const operation = new Operation<Raw, OperationAnswer<R, T>>(this.#database, name, options as never, fn)
    this.#operations.set(name, operation)
    return operation
  }

  /**
   * Runs `fn` once in each period: one report a day, one vote a week, one run for each time of a cron expression. A later caller in the same period gets a
   * `SingletonConflictError` that names the holder and the result. The database's clock decides the period, and `fn` gets it as `slot`.
   *
   * Slot, writes and outcome commit together, as with `once`. For effects outside of the database use `mode: 'leased'`.
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
   * As `singleton`, but returns `{ ok: false }` instead of an error if another caller was first. For a timer that fires in every pod.
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
   * Undoes a slot once. Of any number of callers that name the same use of the slot (`slot.id`), one gets `ok: true` and runs `fn` in the same transaction.
   * The slot is then free again, or stays taken (`frees: false`). If the slot was kept after its transaction failed, there is nothing to undo, and `fn` does
   * not run.
   *
   * @example
   * const { ok } = await dibs.voidSlot({ scope: ['prayer', child], slot }, async (tx) => {
   *   await tx.query('update account set points = points - 5 where child = $1', [child])
   * })
   */
  readonly voidSlot: VoidSlot

  /**
   * Makes several claims of different kinds, all or none, in one round trip: an idempotency key, slots, quotas, rate limits, locks. If one is refused, nothing
   * is claimed, and `AcquireRefusedError` has the reason of each refused claim. If the idempotency key has an outcome already, that is the answer, and no other
   * claim is made.
   *
   * Claims, writes and outcome commit together. For effects outside of the database use `{ mode: 'leased' }`.
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
   * As `acquire`, but returns `{ ok: false, failures }` instead of an `AcquireRefusedError`. Other errors are thrown, also those of `fn`.
   *
   * @example
   * const attempt = await dibs.tryAcquire([points.claim(child, 10), claim.lock('till-7')], async (tx) => {
   *   await tx.query('insert into award (child) values ($1)', [child])
   * })
   * if (!attempt.ok) for (const { kind, error } of attempt.failures) console.log(kind, error.message)
   */
  readonly tryAcquire: TryAcquire

  /**
   * Takes a lock that one caller in all processes holds at a time (or as many as `permits`), and waits up to `waitMs` for it. The lease is renewed automatically
   * until `release`, and ends when its holder dies. A holder that was suspended may wake up late, so its writes must name the lock: `lock.guard(tx)` in this
   * database, `lock.fence` elsewhere.
   *
   * Throws `BusyError` after `waitMs`, and `GuardedError` if a guarded transaction of the last holder is still open.
   *
   * @example
   * await using lock = await dibs.lock(keyOf('till', 7), { leaseMs: 10_000, waitMs: 5_000 })
   * await dibs.transaction(async (tx) => {
   *   await lock.guard(tx)
   *   await tx.query('update till set open = false where id = 7')
   * })
   */
  lock(name: string, options?: LockOptions): Promise<Lock> {
    return this.#lockManager.lock(name, options)
  }

  /**
   * As `lock`, but does not wait, and returns null if another caller holds the lock.
   *
   * @example
   * const lock = await dibs.tryLock('nightly-report')
   * if (lock === null) return
   */
  tryLock(name: string, options?: TryLockOptions): Promise<Lock | null> {
    return this.#lockManager.tryLock(name, options)
  }

  /**
   * Runs `fn` under a lock, and releases the lock afterwards. If the lock was lost meanwhile, the call throws `FenceLostError`, also if `fn` has returned:
   * another caller may have done the same work.
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
   * Makes this process a candidate, until `stop` or `close`. Of all candidates with one name, in all processes, one leads at a time. A leader that obeys
   * `term.signal` stops before the next one starts. Writes guarded by `term.guard(tx)` are safe in any case. The leader holds the lock
   * `keyOf('leader', name)`.
   *
   * @example
   * const election = dibs.elect('scheduler', {
   *   leaseMs: 15_000,
   *   onElected: async ({ epoch, signal }) => {
   *     console.log(`leader in epoch ${epoch}`)
   *     while (!signal.aborted) await fetch(source, { signal })
   *   },
   *   onLost: (term, reason) => console.log(`no longer the leader: ${reason}`),
   * })
   * process.once('SIGTERM', () => void election.stop())
   */
  elect(name: string, options: ElectOptions = {}): Election {
    if (this.#closing) throw new ClosedError()
    const take: Take = (spec) => this.#lockManager.lockBySpec(spec)
    const election = new Election(this.#database, take, name, options, this.#closed.signal)
    this.#elections.add(election)
    void election.ended.then(() => this.#elections.delete(election))
    return election
  }

  /**
   * Loads a value once for all concurrent callers in all processes: one runs `load`, the others wait for its value. With `ttlMs` the value is kept. With
   * `staleMs` the old value is returned while one caller loads a new one in the background. If the process that loads dies, another caller loads. A load that
   * ends too late is not kept.
   *
   * If a load loses the lead, another one may start while it still runs. So `load` should only read. Throws `BusyError` if the load of another caller takes longer than `waitMs`.
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
   * Defines totals that a parent row keeps of its children: counts, sums, the latest of something. Defining sends nothing. All processes that share the tables
   * should give the same definition under the same name.
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
    checkNew('aggregate', this.#aggregates, name)
    const aggregate = new Aggregate<R>(this.#rows, spec)
    this.#aggregates.set(name, aggregate as Aggregate<object>)
    return aggregate
  }

  /**
   * Defines a rule for stuck rows of your own table: rows in a state of work that no worker has touched for too long. Each run requeues them or fails them, in
   * batches that never wait. Any number of processes may run it at the same time. A row with a live lease in its `leaseColumn` is never touched. Defining starts
   * nothing.
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
    checkNew('monitor', this.#monitors, name)
    this.#monitors.set(name, monitor)
    return monitor
  }

  /**
   * Defines a shared limit: points a day, tokens a month, pieces in stock. Defining starts nothing.
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
   * Defines a rate limit for each subject, shared by all processes. Defining sends nothing. `limit` and `burst` may change from one release to the next; earlier
   * use still counts.
   *
   * @example
   * const api = dibs.rateLimit('api', { algorithm: 'token-bucket', limit: 100, perMs: 60_000 })
   * const { remaining } = await api.take('tenant:7')
   */
  rateLimit(name: string, options: RateLimitOptions): RateLimit {
    return new RateLimit(this.#database, name, options)
  }

  /**
   * Defines kinds of jobs: the input, the queue and the retries of each. Calls that add and run jobs are typed by these names. Defining sends nothing.
   *
   * A job runs at least once, and each attempt has one recorded outcome. What a handler writes through `ctx.tx` (`transactional: true`) is there exactly once for
   * a job that succeeded.
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
   * Runs jobs in this process, until `stop` or `close`. All workers of an instance share three connections, which handlers cannot starve, one heartbeat and one
   * completer.
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
    void worker.stopped.then(() => this.#workers.delete(stop))
    return worker
  }

  /**
   * Removes expired rows, finishes operations of dead processes, recomputes marked aggregates and runs the monitors. `Dibs.open` starts this in the background
   * unless it was given `maintain: false`. Call `maintain` for another interval, or to keep the process alive for it. All calls share one loop, which ends with
   * `close`. With `once: true`, it runs one round now and returns its report.
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
    const everyMs = readMaintain(options)
    if (everyMs === undefined) return this.#maintenance.run()
    if (this.#closing) throw new ClosedError()
    return this.#maintenance.start(everyMs)
  }

  /**
   * Reads the database's clock, which decides all leases and windows.
   *
   * @example
   * const skewMs = Date.now() - (await dibs.now()).getTime()
   */
  async now(): Promise<Date> {
    const [row] = await this.#database.send(readClock, [])
    return dateFromMicros(`${row?.micros}`)
  }

  /**
   * Checks that the database answers and has the tables of Dibs, for a health endpoint. Takes at most four seconds and never throws.
   *
   * @example
   * const { ok, problem } = await dibs.health()
   * if (!ok) console.error(`unhealthy: ${problem}`)
   */
  health(): Promise<Health> {
    return readHealth(this.#database)
  }

  /**
   * Stops everything that this instance started. `close` waits up to 30 seconds for running calls; then they lose their connections. Later calls are
   * `ClosedError`. Called inside a transaction, `close` would wait for itself.
   *
   * Workers get their `drainMs` first. If handlers still run after that, everything is closed within ten more seconds. Timers and sockets of your own keep the
   * process alive, so exit when `close` has resolved.
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
      await this.#source.close(waitMs).finally(() => this.#stopLogging())
    }
  }

  /** Stops everything that uses connections. Returns the deadline for closing the connections, by `performance.now()`. */
  async #stop(): Promise<number> {
    let waitMs = CLOSE_MS
    if (this.#workers.size > 0) {
      // Workers first: their handlers may use the parts that are closed next.
      const goOn = await Promise.all([...this.#workers].map((stop) => stop()))
      if (goOn.includes(true)) waitMs = IGNORED_CLOSE_MS
    }
    const endsAt = performance.now() + waitMs
    // Work that these have begun is among the calls that `database.close` waits for.
    for (const election of this.#elections) void election.stop()
    void this.#maintenance.stop()
    this.#lockManager.stopWaiting()
    this.#singleFlightManager.stopWaiting()
    await this.#database.close(waitMs)
    this.#closed.abort()
    this.#engine.close()
    this.#lockManager.close()
    this.#singleFlightManager.close()
    await this.#wakeups.close()
    return endsAt
  }
}

/** Refuses a second definition with the same name. */
function checkNew(kind: string, defined: ReadonlyMap<string, unknown>, name: string): void {
  if (defined.has(name)) throw new InvalidInputError('name', `is the name of another ${kind}: "${name}"`)
}
