import { workerData } from 'node:worker_threads'
import pg from 'pg'
import { Lease } from '../leases/lease.js'
import { LeaseRenewer, type Renewal, type RenewalState } from '../leases/lease-renewer.js'
import { ScramClient } from '../postgres/embedded/scram-client.js'
import { withTimeout } from '../postgres/with-timeout.js'
import type { LeaseOfThread, ThreadOrder, ThreadReport, ThreadSetup } from './heartbeat-thread.js'

// The heartbeat thread renews leases over its own connection, also while a handler keeps the main thread busy. The main thread judges the results.

/** The most leases in one statement. */
const MAX_BATCH = 1_000
const CONNECT_MS = 5_000

const { port, provesPassword, sql, autocommitFits, ...setup } = workerData as ThreadSetup
const Client = provesPassword ? ScramClient : pg.Client
let { config } = setup
/** The time of the last message from the main thread, by `performance.now()`. */
let heardAt = performance.now()
let client: pg.Client | undefined
// The thread connects at once: the first lease may have little time left when it is first renewed.
let connecting: Promise<pg.Client> | undefined = connect()
connecting.catch(() => {})

/** A lease as this thread renews it. The main thread judges its deadline. */
class ThreadLease extends Lease {
  constructor(readonly job: LeaseOfThread) {
    super({ leaseMs: job.leaseMs, sentAt: heardAt, leftMs: Number.POSITIVE_INFINITY })
  }

  /** Stops the renewal when the main thread is silent for longer than its handler may run: the handler is too late then. */
  override beginRenewal(now: number): number {
    return now - heardAt > this.job.silentMs ? 0 : super.beginRenewal(now)
  }

  protected override onLost(): Error {
    return new Error(`The lease of job ${this.job.id} is lost.`)
  }
}

const leases = new Map<number, ThreadLease>()
const renewer = new LeaseRenewer<ThreadLease>({
  renew,
  ...{ maxBatch: MAX_BATCH, maxInFlight: 1, keepsProcessAlive: true },
})

port.on('message', (order: ThreadOrder) => {
  heardAt = performance.now()
  config = order.config ?? config
  for (const job of order.add ?? []) {
    remove(job.id)
    const lease = new ThreadLease(job)
    leases.set(job.id, lease)
    renewer.add(lease)
  }
  for (const { id, fence } of order.remove ?? []) if (leases.get(id)?.job.fence === fence) remove(id)
  if (order.renewsNow) renewer.renewNow()
  if (order.ends) void end()
})

function remove(id: number): void {
  leases.get(id)?.stopRenewal()
  leases.delete(id)
}

async function end(): Promise<void> {
  for (const id of leases.keys()) remove(id)
  await client?.end().catch(() => {})
  port.close()
}

async function renew(
  renewals: readonly Renewal<ThreadLease>[],
  patienceMs: number,
): Promise<readonly RenewalState[]> {
  const sentAt = process.hrtime.bigint()
  const jobs = renewals.map(({ lease }) => lease.job)
  const claims = jobs.map(({ id, fence }) => ({ id, fence }))
  try {
    const result = await sendHeartbeat(jobs, patienceMs)
    port.postMessage({ sentAt, claims, result } satisfies ThreadReport)
    return renewals.map(() => 'held')
  } catch (error) {
    port.postMessage({ sentAt, claims, result: null, error: String(error) } satisfies ThreadReport)
    throw error
  }
}

async function sendHeartbeat(jobs: readonly LeaseOfThread[], patienceMs: number): Promise<string> {
  const list = (value: (job: LeaseOfThread) => number): string => `{${jobs.map(value).join(',')}}`
  const values = ['{}', list(({ id }) => id), list(({ fence }) => fence), list(({ leaseMs }) => leaseMs)]
  // A connection that is late is kept for the next statement.
  connecting ??= connect()
  const until = performance.now() + patienceMs
  const own = await inTime(connecting, patienceMs)
  try {
    return await inTime(sendOn(own, values), until - performance.now())
  } catch (error) {
    drop(own)
    throw error
  }
}

/** Sends the statement at READ COMMITTED and with the right to write, whatever the defaults of the server are. */
async function sendOn(own: pg.Client, values: readonly string[]): Promise<string> {
  if (!autocommitFits) await own.query('begin isolation level read committed read write')
  const { rows } = await own.query<{ result: string }>({ text: sql, values: [...values] })
  if (!autocommitFits) await own.query('commit')
  return `${rows[0]?.result}`
}

function inTime<T>(promise: Promise<T>, ms: number): Promise<T> {
  return withTimeout(promise, ms, () => {
    throw new Error(`no answer within ${Math.round(ms)} ms`)
  })
}

async function connect(): Promise<pg.Client> {
  const own = new Client({ ...config, connectionTimeoutMillis: CONNECT_MS })
  own.on('error', () => drop(own))
  try {
    await own.connect()
    client = own
    return own
  } catch (error) {
    connecting = undefined
    throw error
  }
}

function drop(broken: pg.Client): void {
  if (client === broken) {
    client = undefined
    connecting = undefined
  }
  void broken.end().catch(() => {})
}
