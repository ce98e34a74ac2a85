import { workerData } from 'node:worker_threads'
import pg from 'pg'
import { ScramClient } from '../postgres/embedded/scram-client.js'
import { withTimeout } from '../postgres/with-timeout.js'
import type { KeptLease, ThreadOrder, ThreadReport, ThreadSetup } from './heartbeat-thread.js'

// The heartbeat's own thread: it goes on while a handler keeps the main one busy. It knows nothing but leases, and asks for them over a connection of its own.

/** How often it looks what is due. */
const LOOK_MS = 100
/** How many leases go with one statement; the others with the next. */
const MOST = 1_000
const CONNECT_MS = 5_000

const { port, proves, text, autocommitFits, ...setup } = workerData as ThreadSetup
const Client = proves ? ScramClient : pg.Client
const leases = new Map<number, KeptLease & { renewAt: number }>()
let { config } = setup
/** When the main thread was last heard of. */
let heardAt = performance.now()
let client: pg.Client | undefined
// At once: the first lease may have little time left when it is first renewed.
let connecting: Promise<pg.Client> | undefined = connect()
connecting.catch(() => {})
let isOver = false

port.on('message', (order: ThreadOrder) => {
  heardAt = performance.now()
  config = order.config ?? config
  for (const lease of order.add ?? [])
    leases.set(lease.id, { ...lease, renewAt: heardAt + lease.leaseMs / 3 })
  for (const { id, fence } of order.remove ?? []) if (leases.get(id)?.fence === fence) leases.delete(id)
  isOver ||= order.end === true
})

while (!isOver) {
  await new Promise((resolve) => setTimeout(resolve, LOOK_MS))
  for (let due = findDue(); due.length > 0 && !isOver; due = findDue()) await beat(due)
}
await client?.end().catch(() => {})
port.close()

/** Those that soon are go with them. A main thread that is silent for longer than its handler may take does not come back in time. */
function findDue(): KeptLease[] {
  const now = performance.now()
  const alive = [...leases.values()].filter(({ silentMs }) => now - heardAt <= silentMs)
  if (!alive.some(({ renewAt }) => renewAt <= now)) return []
  return alive
    .filter(({ renewAt, leaseMs }) => renewAt - leaseMs / 6 <= now)
    .sort((one, other) => one.renewAt - other.renewAt)
    .slice(0, MOST)
}

async function beat(due: readonly KeptLease[]): Promise<void> {
  const sentAt = process.hrtime.bigint()
  const claims = due.map(({ id, fence }) => ({ id, fence }))
  const patienceMs = Math.min(...due.map(({ leaseMs }) => leaseMs)) / 4
  try {
    const told = await ask(due, patienceMs)
    plan(due, (leaseMs) => leaseMs / 3)
    port.postMessage({ sentAt, claims, told } satisfies ThreadReport)
  } catch (error) {
    plan(due, (leaseMs) => Math.max(LOOK_MS, leaseMs / 10))
    port.postMessage({ sentAt, claims, told: null, error: String(error) } satisfies ThreadReport)
  }
}

function plan(due: readonly KeptLease[], inMs: (leaseMs: number) => number): void {
  const now = performance.now()
  for (const { id, fence, leaseMs } of due) {
    const lease = leases.get(id)
    if (lease?.fence === fence) lease.renewAt = now + inMs(leaseMs)
  }
}

async function ask(due: readonly KeptLease[], patienceMs: number): Promise<string> {
  const list = (value: (lease: KeptLease) => number): string => `{${due.map(value).join(',')}}`
  const values = ['{}', list(({ id }) => id), list(({ fence }) => fence), list(({ leaseMs }) => leaseMs)]
  // One that is being made has its own time, and is there for the next.
  connecting ??= connect()
  const own = await inTime(connecting, patienceMs)
  try {
    return await inTime(send(own, values), patienceMs)
  } catch (error) {
    drop(own)
    throw error
  }
}

/** As of the newest data, and with a right to write, whatever the defaults of the server are. */
async function send(own: pg.Client, values: readonly string[]): Promise<string> {
  if (!autocommitFits) await own.query('begin isolation level read committed read write')
  const { rows } = await own.query<{ told: string }>({ text, values: [...values] })
  if (!autocommitFits) await own.query('commit')
  return `${rows[0]?.told}`
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
