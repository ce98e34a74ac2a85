// A transaction that is held open elsewhere keeps the server from removing what is deleted. At an even pace of new jobs: are they all run, how
// long does each wait for its start, and is it as before when the transaction has ended?
import { setTimeout as sleep } from 'node:timers/promises'
import { now } from './clock.mjs'
import { contestants } from './contestants.mjs'
import { JobProcess } from './process.mjs'
import { p50p99, rounded } from './rounds.mjs'
import { withClient } from './server.mjs'
import { settings } from './settings.mjs'

const WARM_MS = 2_000
const CONCURRENCY = 50

export async function measureHeldSnapshot(place, names) {
  const results = []
  for (const contestant of names) {
    results.push(...(await measureOne(place, contestant)))
    process.stderr.write(`${contestant}: held snapshot\n`)
  }
  return results
}

async function measureOne(place, name) {
  const options = { ...place, hints: true }
  const [producer, consumer] = [await JobProcess.open(name, options), await JobProcess.open(name, options)]
  const { heldS, aroundS, pacePerSecond } = settings
  try {
    await producer.call('clear')
    await consumer.call('work', { concurrency: CONCURRENCY })
    const ms = WARM_MS + (aroundS + heldS + aroundS) * 1000
    const adding = producer.call('addPaced', { perSecond: pacePerSecond, ms, first: 0 })
    await sleep(WARM_MS)
    const marks = [now()]
    await sleep(aroundS * 1000)
    marks.push(now())
    const dead = await whileHeld(place.url, name, heldS * 1000)
    marks.push(now())
    const { calledAt } = await adding
    marks.push(now())
    await settle(consumer, calledAt.length)
    const starts = await consumer.call('stop')
    const { left } = await consumer.call('outcomes')
    const startedAt = new Map(starts)
    if (starts.length !== calledAt.length || startedAt.size !== calledAt.length || left > 0)
      throw new Error(`${name}: ${calledAt.length} added, ${starts.length} runs, ${left} left`)
    const late = marks[1] + (marks[2] - marks[1]) * 0.75
    const phases = {
      before: [marks[0], marks[1]],
      held: [marks[1], marks[2]],
      'last quarter of held': [late, marks[2]],
      after: [marks[2], marks[3]],
    }
    return Object.entries(phases).map(([phase, bounds]) => ({
      contestant: name,
      phase,
      ...summarize(calledAt, startedAt, bounds),
      ...(phase === 'held' && { dead }),
    }))
  } finally {
    await producer.close()
    await consumer.close()
  }
}

/** @returns how many dead rows the tables of the contestant have at the end */
const whileHeld = (url, name, ms) =>
  withClient(url, async (client) => {
    await client.query('begin isolation level repeatable read')
    await client.query('select 1') // from here on it has a snapshot
    await sleep(ms)
    const dead = await withClient(url, async (other) => {
      const { rows } = await other.query(
        'select coalesce(sum(n_dead_tup), 0)::int as dead from pg_stat_user_tables where schemaname = $1',
        [contestants[name].schema],
      )
      return rows[0].dead
    })
    await client.query('rollback')
    return dead
  })

async function settle(consumer, count) {
  const until = now() + 60_000
  while (now() < until) {
    const { left } = await consumer.call('outcomes')
    if ((await consumer.call('started')) >= count && left === 0) return
    await sleep(50)
  }
}

/** The rates of jobs added and started between `since` and `until`, and the waits of the jobs added then. */
function summarize(calledAt, startedAt, [since, until]) {
  const waits = []
  let inTime = 0
  for (const [n, at] of calledAt.entries()) {
    const started = startedAt.get(n)
    if (started >= since && started < until) inTime++
    if (at >= since && at < until) waits.push(started - at)
  }
  const seconds = (until - since) / 1000
  return {
    added: rounded(waits.length / seconds),
    started: rounded(inTime / seconds),
    waits: p50p99(waits),
  }
}

export const snapshotTable = (rows) =>
  [
    `| a snapshot held for ${settings.heldS} s, ${settings.pacePerSecond} jobs/s | phase | added /s | started /s | add → start p50, p99 ms | dead rows at its end |`,
    '|---|---|---|---|---|---|',
    ...rows.map(
      (row) =>
        `| ${row.contestant} | ${row.phase} | ${row.added} | ${row.started} | ${row.waits.join(', ')} | ${row.dead ?? ''} |`,
    ),
  ].join('\n')
