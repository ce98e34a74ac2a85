// One of the processes that fight over one lock: takes it, works for a while, and counts in a guarded transaction. Nothing but the guard protects
// the counter. Tells what it does.
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Dibs } from '../../dist/index.js'

const { url, schema, world, name, ttlMs } = JSON.parse(process.argv[2])
process.on('disconnect', () => process.exit())
let isOver = false
process.on('message', () => {
  isOver = true
})

const pool = new pg.Pool({ connectionString: url, max: 3 })
pool.on('error', () => {})
const dibs = await Dibs.open({ pool, schema, migrate: 'off' })
const tell = (told) => process.send(told)

/** As the library does it; and as a holder would that has no idea how late it is, so that the server alone is there to refuse it. */
const guards = {
  handle: (lock, tx) => lock.guard(tx),
  server: (lock, tx) =>
    tx.query(`select ${schema}.lock_guard($1, $2, $3, $4, 5000)::text`, [
      lock.name,
      lock.permit,
      lock.fence,
      ttlMs,
    ]),
}

async function count(lock, how) {
  await dibs.transaction(async (tx) => {
    await guards[how](lock, tx)
    const { rows } = await tx.query(`select n from ${world}.counter`)
    await sleep(Math.random() * 4) // so that a fault may strike in here as well
    await tx.query(`update ${world}.counter set n = $1`, [rows[0].n + 1])
    await tx.query(`insert into ${world}.history (n, fence) values ($1, $2)`, [rows[0].n + 1, lock.fence])
  })
}

/** What one is told that is too late: by the fence, or since the server has ended its transaction. */
const refusals = new Set([
  'DIBS_FENCE_LOST',
  'DIBS_DATABASE',
  'DIBS_CONNECTION_LOST',
  'DIBS_COMMIT_OUTCOME_UNKNOWN',
])

tell({ at: 'ready' })
while (!isOver) {
  let lock
  try {
    lock = await dibs.lock(name, { ttlMs, waitMs: 1_000 })
  } catch (error) {
    if (error.code !== 'DIBS_BUSY' && error.code !== 'DIBS_GUARDED')
      tell({ at: 'failed', error: `${error.stack}` })
    continue
  }
  const { fence, tookOver } = lock
  tell({ at: 'held', fence, from: tookOver?.fence })
  const how = Math.random() < 0.5 ? 'handle' : 'server'
  try {
    await sleep(4 + Math.random() * 8)
    await count(lock, how)
    tell({ at: 'counted', fence })
  } catch (error) {
    if (refusals.has(error.code)) tell({ at: 'refused', fence, how, code: error.code })
    else tell({ at: 'failed', error: `${error.stack}` })
  }
  await lock.release().catch((error) => tell({ at: 'failed', error: `${error.stack}` }))
}
await dibs.close()
await pool.end()
process.send({ at: 'over' }, () => process.exit())
