// One of the processes of the storm: takes, reserves and gives back what it can of two quotas, and tells what it was answered.
import { randomUUID } from 'node:crypto'
import pg from 'pg'
import { Dibs } from '../../dist/index.js'

const { url, schema, awards, limit, windowMs, callers } = JSON.parse(process.argv[2])
process.on('disconnect', () => process.exit())
// From the start: what comes before somebody listens is lost. It is asked to repeat when it is ready.
const repeated = []
let isOver = false
process.on('message', (told) => {
  if (told.at === 'again') repeated.push(attempt('again', () => again(told)))
  else isOver = true
})

const pool = new pg.Pool({ connectionString: url, max: callers })
pool.on('error', () => {})
const dibs = await Dibs.open({ pool, schema, logger: false, migrate: 'off', listen: false })
const options = { limit, ledger: true, waitMs: 2_000 }
const quotas = [dibs.quota('stock', options), dibs.quota('window', { ...options, perMs: windowMs })]
const SUBJECT = 'hot'

const passing = new Set(['DIBS_QUOTA_EXCEEDED', 'DIBS_BUSY', 'DIBS_CONFLICT', 'DIBS_HOLD_ENDED'])
const pick = (list) => list[Math.floor(Math.random() * list.length)]
const amountOf = () => 1 + Math.floor(Math.random() * 3)
/** Ids of earlier takes, to be given back. */
const mine = []

/** Takes, and writes down that it did, in one transaction. */
const award = (quota, id, amount) =>
  dibs.transaction(async (tx) => {
    await quota.take(SUBJECT, amount, { id, tx })
    await tx.query(`insert into ${awards} (quota, id, amount) values ($1, $2, $3)`, [quota.name, id, amount])
  })

const works = {
  async take(quota) {
    const [id, amount] = [`take-${randomUUID()}`, amountOf()]
    process.send({ at: 'asked', quota: quota.name, id, amount })
    await again({ quota: quota.name, id, amount })
    if (Math.random() < 0.4) mine.push([quota, id])
  },
  async anonymous(quota) {
    const { id } = await quota.take(SUBJECT, 1)
    mine.push([quota, id])
  },
  async award(quota) {
    await award(quota, `award-${randomUUID()}`, amountOf())
  },
  async settle(quota) {
    const hold = await quota.reserve(SUBJECT, 3, { leaseMs: 150, id: `hold-${randomUUID()}` })
    await hold.settle(pick([0, 1, 3]))
    mine.push([quota, hold.id])
  },
  async void(quota) {
    const hold = await quota.reserve(SUBJECT, 3, { leaseMs: 150 })
    if (Math.random() < 0.7) await hold.void()
  },
  async refund() {
    const [one] = mine.splice(Math.floor(Math.random() * mine.length), 1)
    if (!one) return
    process.send({ at: 'refunding', quota: one[0].name, id: one[1] })
    await one[0].refund(one[1])
  },
}

/** Repeats a call with the same id until there is an answer. The id may come from a killed process. */
async function again({ quota: name, id, amount }) {
  const quota = quotas.find((one) => one.name === name)
  try {
    const { replayed } = await quota.take(SUBJECT, amount, { id })
    process.send({ at: 'taken', quota: name, id, amount, replayed })
  } catch (error) {
    if (passing.has(error.code)) process.send({ at: 'not taken', id })
    throw error
  }
}

async function call() {
  while (!isOver) {
    const kind = pick(['take', 'take', 'anonymous', 'award', 'settle', 'void', 'refund', 'refund'])
    await attempt(kind, () => works[kind](pick(quotas)))
  }
}

async function attempt(kind, fn) {
  try {
    await fn()
    process.send({ at: 'done', kind })
  } catch (error) {
    if (passing.has(error.code)) process.send({ at: 'refused', kind, code: error.code })
    else process.send({ at: 'failed', kind, error: `${error.stack}` })
  }
}

process.send({ at: 'ready' })
await Promise.all(Array.from({ length: callers }, call))
await Promise.all(repeated)
await dibs.close()
await pool.end()
process.send({ at: 'over' }, () => process.exit())
