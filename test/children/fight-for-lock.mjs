// One of the processes that fight over one lock, or to lead: works for a while, and counts in a guarded transaction. Nothing but the guard protects
// the counter. Tells what it does.
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Dibs } from '../../dist/index.js'

const { url, schema, world, way, leaseMs } = JSON.parse(process.argv[2])
process.on('disconnect', () => process.exit())
let isOver = false
process.on('message', () => {
  isOver = true
})

const pool = new pg.Pool({ connectionString: url, max: 3 })
pool.on('error', () => {})
const dibs = await Dibs.open({ pool, schema, logger: false, migrate: 'off' })
const tell = (told) => process.send(told)

/** As the library does it; and as a holder would that has no idea how late it is, so that the server alone is there to refuse it. */
const guards = {
  handle: (held, tx) => held.guard(tx),
  server: (held, tx) =>
    tx.query(`select ${schema}.lock_guard($1, 0, $2, $3, 5000, false)::text`, [
      held.name,
      held.fence,
      leaseMs,
    ]),
}

async function count(held, how) {
  await dibs.transaction(async (tx) => {
    await guards[how](held, tx)
    const { rows } = await tx.query(`select n from ${world}.counter`)
    await sleep(Math.random() * 4) // so that a fault may strike in here as well
    await tx.query(`update ${world}.counter set n = $1`, [rows[0].n + 1])
    await tx.query(`insert into ${world}.history (n, fence) values ($1, $2)`, [rows[0].n + 1, held.fence])
  })
}

/** Errors of a late holder: a lost fence (DIB03 from the server), or a transaction that the server has ended. */
const refusals = new Set(['DIBS_FENCE_LOST', 'DIBS_CONNECTION_LOST', 'DIBS_COMMIT_OUTCOME_UNKNOWN'])
const isRefusal = ({ code, sqlState }) => refusals.has(code) || sqlState === 'DIB03'

async function work(held, tookOver) {
  const { fence } = held
  tell({ at: 'held', fence, from: tookOver?.fence })
  const how = Math.random() < 0.5 ? 'handle' : 'server'
  try {
    await sleep(4 + Math.random() * 8)
    await count(held, how)
    tell({ at: 'counted', fence })
  } catch (error) {
    if (isRefusal(error)) tell({ at: 'refused', fence, how, code: error.code })
    else tell({ at: 'failed', error: `${error.stack}` })
  }
}

const turns = {
  async lock() {
    let lock
    try {
      lock = await dibs.lock('the-lock', { leaseMs, waitMs: 1_000 })
    } catch (error) {
      if (error.code !== 'DIBS_BUSY' && error.code !== 'DIBS_GUARDED')
        tell({ at: 'failed', error: `${error.stack}` })
      return
    }
    await work(lock, lock.tookOver)
    await lock.release().catch((error) => tell({ at: 'failed', error: `${error.stack}` }))
  },

  /** Leads for one piece of work, and hands over. */
  async elect() {
    const election = dibs.elect('it', {
      leaseMs,
      onElected: async (term) => {
        const held = { name: 'leader:it', fence: term.epoch, guard: (tx) => term.guard(tx) }
        await work(held, term.tookOver)
        void election.stop()
      },
    })
    await election.ended
  },
}

tell({ at: 'ready' })
while (!isOver) await turns[way]()
await dibs.close()
await pool.end()
process.send({ at: 'over' }, () => process.exit())
