// Cost of holding locks for a while: statements and CPU time per second. This file also is the process that holds them.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Dibs } from '../dist/index.js'

/** The first is what else this process does, once it is warm. */
const COUNTS = [0, 1, 10, 100, 1_000]
/** Renewed each second. */
const TTL_MS = 3_000
const LONG_MS = 6_000

export async function measureLockKeeping(url) {
  const child = fork(import.meta.filename, [], { env: { ...process.env, BENCH_KEEP: url } })
  await once(child, 'message')
  const results = []
  for (const locks of [10, ...COUNTS]) {
    child.send(locks)
    const [{ error, ...row }] = await once(child, 'message')
    if (error) throw new Error(error)
    results.push(row)
  }
  child.disconnect()
  await once(child, 'exit')
  return results.slice(1) // the first is for warmth
}

async function keep(dibs, count, sent) {
  const locks = []
  const add = async () => {
    while (locks.length < count) {
      const place = locks.push(undefined) - 1
      locks[place] = await dibs.lock(`kept:${count}:${place}`, { leaseMs: TTL_MS })
    }
  }
  await Promise.all(Array.from({ length: 10 }, add))
  await sleep(2 * TTL_MS) // those that began together are renewed together by now
  const before = { sent: sent(), cpu: process.cpuUsage(), at: performance.now() }
  await sleep(LONG_MS)
  const { user, system } = process.cpuUsage(before.cpu)
  const seconds = (performance.now() - before.at) / 1000
  const row = {
    locks: count,
    statementsPerSecond: Number(((sent() - before.sent) / seconds).toFixed(2)),
    cpuMsPerSecond: Number(((user + system) / 1000 / seconds).toFixed(2)),
  }
  const ends = []
  for (const lock of locks) ends.push(await lock.release())
  if (ends.some((end) => end !== 'released')) throw new Error('one of them was lost')
  return row
}

export const keepingTable = (rows) =>
  [
    `| locks held in one process, renewed each ${TTL_MS / 3_000} s | statements /s | processor ms /s |`,
    '|---|---|---|',
    ...rows.map((row) => `| ${row.locks} | ${row.statementsPerSecond} | ${row.cpuMsPerSecond} |`),
  ].join('\n')

if (process.env.BENCH_KEEP && process.send) {
  let sent = 0
  const { query } = pg.Client.prototype
  pg.Client.prototype.query = function (...args) {
    sent++
    return query.apply(this, args)
  }
  const pool = new pg.Pool({ connectionString: process.env.BENCH_KEEP, max: 10 })
  pool.on('error', () => {})
  const dibs = await Dibs.open({ pool })
  process.on('message', async (count) => {
    process.send(await keep(dibs, count, () => sent).catch((error) => ({ error: String(error) })))
  })
  process.on('disconnect', async () => {
    await dibs.close()
    await pool.end()
  })
  process.send('ready')
}
