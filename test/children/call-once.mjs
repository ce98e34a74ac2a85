// One of the processes of the storm: calls `once` and an operation as it is told to, each until it has an answer, and tells
// what it holds, so that faults can be aimed at it.
import { AsyncLocalStorage } from 'node:async_hooks'
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Dibs, onEvent } from '../../dist/index.js'
import { LEASE_MS, OPERATION, planOf, SCOPE, workJoined, workLeased } from './once-work.mjs'

const { url, schema, worldSchema, seed } = JSON.parse(process.argv[2])
const MAX_TRIES = 1_000
const MAX_PAUSE_MS = 100

/** The errors after which a caller calls again. */
const passing = new Set([
  'PASSING',
  'DIBS_IN_PROGRESS',
  'DIBS_BUSY',
  'DIBS_FENCE_LOST',
  'DIBS_OUTCOME_NOT_STORED',
  'DIBS_CONNECTION_LOST',
  'DIBS_COMMIT_OUTCOME_UNKNOWN',
  'DIBS_CONFLICT',
])

const tell = (message) => process.send({ ...message, on: Date.now() })
process.on('disconnect', () => process.exit())

for (const name of ['taken-over', 'lost', 'gave-up', 'not-stored'])
  onEvent(`dibs:once.${name}`, ({ keyHash, attempt, fence, how }) =>
    tell({ at: 'event', name, keyHash, attempt, fence, how }),
  )
onEvent('dibs:commit.unknown', () => tell({ at: 'event', name: 'unknown' }))

const pool = new pg.Pool({ connectionString: url, max: 6, connectionTimeoutMillis: 5_000 })
pool.on('connect', (client) => tell({ at: 'connected', pid: client.processID }))
pool.on('remove', (client) => tell({ at: 'disconnected', pid: client.processID }))
const dibs = await Dibs.open({ pool, schema, logger: false, migrate: 'off', listen: false })
// The world outside has connections of its own, which nobody ends.
const world = new pg.Pool({ connectionString: url, max: 2 })
const context = { tell, world, worldSchema }

/** The call that runs a handler, and which run of it is the last. Absent where maintenance runs it. */
const calls = new AsyncLocalStorage()
const leased = { leaseMs: LEASE_MS, maxAttempts: 1_000 }
const operation = dibs.operation(OPERATION, leased, ({ number }, claim) => hold(claim, planOf(number, seed)))
dibs.maintain({ everyMs: 1_000 })

async function hold(claim, plan) {
  const run = String(claim.fence)
  const call = calls.getStore()
  if (call) call.run = run
  try {
    return await workLeased(claim, plan, context)
  } finally {
    if (!call) tell({ at: 'ended', key: plan.key, run, how: 'maintained' })
  }
}

function join(tx, plan) {
  const run = randomUUID()
  calls.getStore().run = run
  return workJoined(tx, run, plan, context)
}

function begin(call, plan, number) {
  const { key, kind } = plan
  const spec = { scope: SCOPE, key, fingerprint: { number } }
  const patience = call % 2 === 0 ? { waitMs: 5_000 } : {}
  if (kind === 'operation') return operation.runDetailed({ number }, { key, ...patience })
  if (kind === 'leased')
    return dibs.onceDetailed({ ...spec, ...leased, ...patience, mode: 'leased' }, (claim) =>
      hold(claim, plan),
    )
  if (call % 2 === 0) return dibs.onceDetailed(spec, (tx) => join(tx, plan))
  return dibs.transaction((tx) => dibs.onceDetailed({ ...spec, tx }, () => join(tx, plan)))
}

async function answer({ call, number }) {
  const plan = planOf(number, seed)
  const { key } = plan
  for (let tries = 1; ; tries++) {
    const current = { run: undefined }
    const ended = (how) => current.run && tell({ at: 'ended', key, run: current.run, how })
    try {
      const { value, replayed } = await calls.run(current, () => begin(call, plan, number))
      ended(replayed ? 'replayed' : 'stored')
      return tell({ at: 'answer', call, key, tries, text: JSON.stringify(value) })
    } catch (error) {
      ended(error.code)
      if (!passing.has(error.code) || tries === MAX_TRIES)
        return tell({ at: 'failed', call, key, tries, error: `${error.stack} ${error.cause?.stack ?? ''}` })
      tell({ at: 'again', code: error.code })
      // Waits for `retryAfterMs`, so that many calls come at the moment when a lease expires.
      await sleep(Math.min(error.retryAfterMs ?? 20 * Math.random(), MAX_PAUSE_MS))
    }
  }
}

process.on('message', (call) => void answer(call))
tell({ at: 'ready' })
