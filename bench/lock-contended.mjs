// How a lock that many want goes from hand to hand: eight processes, one name, each holds it for two milliseconds.
import { LockProcesses, now } from './lock-processes.mjs'
import { median, quantile } from './quantile.mjs'
import { startRedis } from './redis.mjs'

const contestants = [
  'dibs.lock',
  'dibs.lock, listen: false',
  'redlock 5, one Redis',
  'advisory lock in a transaction',
]
const WAITERS = [8, 32, 128]

/** For each contestant and number of those who want it: holds in a second, how long nobody had it in between, and how even the shares are. */
export async function measureContendedLock(url, { rounds, roundMs }) {
  const redis = await startRedis()
  const processes = new LockProcesses(url, redis?.url)
  await processes.open()
  const results = []
  try {
    for (const waiters of WAITERS) {
      const found = new Map(
        contestants.filter((name) => redis || !name.startsWith('redlock')).map((name) => [name, []]),
      )
      for (let round = 0; round < rounds; round++) {
        const order = [...found]
        if (round % 2) order.reverse()
        for (const [contestant, runs] of order) {
          const name = `contended:${waiters}:${round}:${now()}`
          const until = now() + roundMs
          const perProcess = await processes.contend(contestant, name, waiters, roundMs)
          runs.push(summarize(contestant, perProcess, until, roundMs))
        }
      }
      for (const [contestant, runs] of found) results.push({ contestant, waiters, ...together(runs) })
    }
  } finally {
    await processes.close()
    await redis?.stop()
  }
  return results
}

/** Summarizes the holds. A hold that begins after `until` ends at once, so no figure includes it. */
function summarize(contestant, perProcess, until, roundMs) {
  const holds = perProcess
    .flatMap((own, process) => own.map((hold) => [...hold, process]))
    .sort((a, b) => a[0] - b[0])
  const gaps = []
  const gapsSinceAnswer = []
  const handovers = []
  for (const [n, [hasAt, , , fence, process]] of holds.entries()) {
    if (n === 0) continue
    const [, givesAt, gaveAt, fenceBefore, processBefore] = holds[n - 1]
    if (hasAt < givesAt) throw new Error(`${contestant}: ${processBefore} and ${process} had it at a time`)
    if (contestant.startsWith('dibs') && fence <= fenceBefore)
      throw new Error(`${contestant}: fence ${fence} after ${fenceBefore}`)
    if (hasAt > until) continue
    gaps.push(hasAt - givesAt)
    gapsSinceAnswer.push(hasAt - gaveAt)
    if (process !== processBefore) handovers.push(hasAt - givesAt)
  }
  const counts = perProcess.map((own) => own.filter(([hasAt]) => hasAt <= until).length)
  const all = counts.reduce((sum, count) => sum + count, 0)
  return {
    perSecond: (all * 1000) / roundMs,
    gaps,
    gapsSinceAnswer,
    handovers,
    most: Math.max(...counts) / all,
    least: Math.min(...counts) / all,
  }
}

const together = (runs) => {
  const of = (key) => runs.flatMap((run) => run[key])
  const ms = (values, share) => Number(quantile(values, share).toFixed(2))
  return {
    perSecond: Math.round(median(of('perSecond'))),
    gap: [ms(of('gaps'), 0.5), ms(of('gaps'), 0.99)],
    gapSinceAnswer: [ms(of('gapsSinceAnswer'), 0.5), ms(of('gapsSinceAnswer'), 0.99)],
    handover: [ms(of('handovers'), 0.5), ms(of('handovers'), 0.99)],
    handedOver: Number((of('handovers').length / of('gaps').length).toFixed(2)),
    most: Number(median(of('most')).toFixed(2)),
    least: Number(median(of('least')).toFixed(2)),
  }
}

export const contendedTable = (rows) =>
  [
    '| one lock, 8 processes, 2 ms each | wait for it | holds /s | idle gap p50, p99 ms | after the answer p50, p99 ms | to another process p50, p99 ms | so often | share of the busiest process | of the least busy |',
    '|---|---|---|---|---|---|---|---|---|',
    ...rows.map(
      (row) =>
        `| ${row.contestant} | ${row.waiters} | ${row.perSecond} | ${row.gap.join(', ')} | ${row.gapSinceAnswer.join(', ')} | ${row.handover.join(', ')} | ${row.handedOver} | ${row.most} | ${row.least} |`,
    ),
  ].join('\n')
