// Runs every contest in alternating rounds on one durable server and prints ratios. Absolute figures depend on the
// machine and its neighbors; only ratios of one run count.
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { cpus } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { runnerImport } from 'vite'
import { acquireContest, distantAcquireContest } from './acquire.mjs'
import { choosingContest } from './choosing.mjs'
import { measureCrashLoop } from './crash.mjs'
import { measureExplorer } from './explorer.mjs'
import { httpContest } from './http.mjs'
import { measureJobsGrowth } from './jobs/growth.mjs'
import { measureJobs } from './jobs/measure.mjs'
import { limitContest } from './limits.mjs'
import { distantLockContest, lockContest } from './lock.mjs'
import { contendedTable, measureContendedLock } from './lock-contended.mjs'
import { keepingTable, measureLockKeeping } from './lock-keeping.mjs'
import { promises } from './lockers.mjs'
import { distantOnceContest, onceContest } from './once.mjs'
import { median, quantile } from './quantile.mjs'
import { redisVersion } from './redis.mjs'
import { measureReduction } from './reduction.mjs'
import { transactionContest } from './transaction.mjs'
import { upkeepContest } from './upkeep.mjs'

const ROUNDS = Number(process.env.BENCH_ROUNDS ?? 7)
const ROUND_MS = Number(process.env.BENCH_ROUND_MS ?? 1500)

/** `npm run bench -- once` runs the contests with that word in their name, and nothing else. */
const [wanted] = process.argv.slice(2)
const isWanted = ({ name }) => wanted === undefined || name.includes(wanted)

/** Each of those in flight gives its number. */
async function measure(fn, inFlight) {
  const until = performance.now() + ROUND_MS
  const startedAt = performance.now()
  const took = []
  const loop = async (_, who) => {
    for (let at = performance.now(); at < until; at = performance.now()) {
      await fn(who)
      took.push(performance.now() - at)
    }
  }
  await Promise.all(Array.from({ length: inFlight }, loop))
  return { perSecond: (took.length * 1000) / (performance.now() - startedAt), took }
}

/**
 * The first contestant is the yardstick. One that `measures` is given the time and answers with `perSecond`, with how long each call took if
 * it knows that (`took`), and with what else it has seen, by name: the medians of these are columns of their own.
 */
async function run({ name, inFlight, contestants, measures = false, before, after }) {
  await before?.()
  const rates = new Map(Object.keys(contestants).map((key) => [key, []]))
  const took = new Map(Object.keys(contestants).map((key) => [key, []]))
  const seen = new Map(Object.keys(contestants).map((key) => [key, []]))
  for (const fn of Object.values(contestants)) await fn(100) // warm up
  for (let round = 0; round < ROUNDS; round++) {
    const order = Object.entries(contestants)
    if (round % 2) order.reverse()
    for (const [key, fn] of order) {
      const answer = await (measures ? fn(ROUND_MS) : measure(fn, inFlight))
      const {
        perSecond,
        took: times = [],
        ...details
      } = typeof answer === 'number' ? { perSecond: answer } : answer
      rates.get(key).push(perSecond)
      took.set(key, took.get(key).concat(times))
      seen.get(key).push(details)
    }
  }
  await after?.()
  const ms = (key, share) => Number(quantile(took.get(key), share).toFixed(2))
  const base = [...rates.values()][0]
  return [...rates].map(([key, values]) => {
    const ratios = values.map((value, round) => value / base[round])
    return {
      contest: name,
      inFlight,
      contestant: key,
      perSecond: Math.round(median(values)),
      ratio: Number(median(ratios).toFixed(2)),
      spread: [Math.min(...ratios), Math.max(...ratios)].map((ratio) => Number(ratio.toFixed(2))),
      details: {
        ...(took.get(key).length > 0 && { 'p50 ms': ms(key, 0.5), 'p99 ms': ms(key, 0.99) }),
        ...Object.fromEntries(
          Object.keys(seen.get(key)[0]).map((name) => [
            name,
            median(seen.get(key).map((details) => details[name])),
          ]),
        ),
      },
    }
  })
}

const { module } = await runnerImport(join(import.meta.dirname, '../test/postgres-server.ts'))
const server = await module.startPostgres({ durable: true })
try {
  const admin = new pg.Client(server.url)
  await admin.connect()
  const { rows } = await admin.query(
    "select version(), current_setting('fsync') as fsync, current_setting('synchronous_commit') as synchronous_commit",
  )
  await admin.end()
  const { dependencies: peers } = JSON.parse(readFileSync(join(import.meta.dirname, 'package.json'), 'utf8'))
  const machine = { node: process.version, cpus: cpus().length, peers, redis: redisVersion() }
  const knobs = { ...machine, rounds: ROUNDS, roundMs: ROUND_MS, ...rows[0] }

  const results = []
  const others = [
    transactionContest,
    onceContest,
    distantOnceContest,
    httpContest,
    limitContest,
    acquireContest,
    distantAcquireContest,
    lockContest,
    distantLockContest,
    choosingContest,
    upkeepContest,
  ]
  for (const open of wanted?.startsWith('jobs') ? [] : others) {
    const { contests, close } = await open(server.url)
    for (const contest of contests) if (isWanted(contest)) results.push(...(await run(contest)))
    await close()
  }

  const table = printTables(results)
  const locks = {}
  if (isWanted({ name: 'lock: contended' }))
    locks.contended = await measureContendedLock(server.url, { rounds: ROUNDS, roundMs: ROUND_MS })
  if (isWanted({ name: 'lock: held' })) locks.held = await measureLockKeeping(server.url)
  const lockTables = [
    ...(locks.contended ? [contendedTable(locks.contended)] : []),
    ...(locks.held ? [keepingTable(locks.held)] : []),
    ...(locks.contended || locks.held ? [promises] : []),
  ]
  const jobs = await jobsOf(wanted)
  const tables = [table, ...lockTables, ...jobs.tables]
  // A part is for looking at; what is kept is a run of everything, and of the jobs, which take as long as all the rest.
  if (jobs.measured && wanted !== undefined)
    write(wanted, { knobs, jobs: jobs.measured }, [JSON.stringify(knobs), ...jobs.tables])
  if (wanted !== undefined) console.log([JSON.stringify(knobs), ...tables.filter(Boolean)].join('\n\n'))
  else await keep(knobs, { results, locks, jobs: jobs.measured }, tables)
} finally {
  await server.stop()
}

/** How they grow takes minutes, and is measured when it is asked for. */
async function jobsOf(wanted) {
  if (wanted === undefined || wanted === 'jobs') return await measureJobs(server.url)
  if (wanted === 'jobs-growth') return await measureJobsGrowth(server.url)
  return { tables: [] }
}

/** One table for all that have the same columns. */
function printTables(results) {
  const columnsOf = ({ details }) => Object.keys(details).join()
  return [...new Set(results.map(columnsOf))]
    .map((columns) => printTable(results.filter((row) => columnsOf(row) === columns)))
    .join('\n\n')
}

function printTable(results) {
  const more = Object.keys(results[0].details)
  const line = (cells) => `| ${cells.join(' | ')} |`
  return [
    line(['contest', 'in flight', 'contestant', '/s', 'ratio', 'spread', ...more]),
    line(Array(6 + more.length).fill('---')),
    ...results.map(({ contest, inFlight, contestant, perSecond, ratio, spread, details }) =>
      line([contest, inFlight, contestant, perSecond, ratio, spread.join('–'), ...Object.values(details)]),
    ),
  ].join('\n')
}

/** The proof tools beside the contests, and all of it written down. */
async function keep(knobs, measured, tables) {
  const { explorer, reduction, ...fast } = await exploreFast()
  const crashes = [...fast.crashes, ...(await measureCrashLoop(server.url, { server: ['server'] }))]
  const explored = [
    '| explorer, two actors of four statements | schedules | /s | /s with connecting |',
    '|---|---|---|---|',
    ...explorer.map((row) => `| ${row.case} | ${row.schedules} | ${row.perSecond} | ${row.withConnecting} |`),
  ].join('\n')
  const reduced = [
    '| three actors, exhaustive | statements each | schedules | and repeats | seconds | every order | seconds |',
    '|---|---|---|---|---|---|---|',
    ...reduction.map(
      (row) =>
        `| ${row.case} | ${row.statements} | ${row.schedules} | ${row.repeats} | ${row.seconds} | ${row.everyOrder} | ${row.everySeconds} |`,
    ),
  ].join('\n')
  const crashed = [
    '| crash loop | statements | points | runs | seconds | runs /s |',
    '|---|---|---|---|---|---|',
    ...crashes.map(
      (row) =>
        `| ${row.modes} | ${row.statements} | ${row.points} | ${row.runs} | ${row.seconds} | ${row.perSecond} |`,
    ),
  ].join('\n')
  const pages = [JSON.stringify(knobs), ...tables, explored, reduced, crashed]
  console.log(pages.join('\n\n'))
  write('latest', { knobs, ...measured, explorer, reduction, crashes }, pages)
}

function write(name, measured, pages) {
  const out = join(import.meta.dirname, 'results')
  mkdirSync(out, { recursive: true })
  writeFileSync(join(out, `${name}.json`), `${JSON.stringify(measured, null, 2)}\n`)
  writeFileSync(join(out, `${name}.md`), `${pages.join('\n\n')}\n`)
}

/** On a server that keeps nothing through a crash, as one explores. */
async function exploreFast() {
  const fast = await module.startPostgres({})
  try {
    return {
      explorer: await measureExplorer(fast.url, Number(process.env.BENCH_SCHEDULES ?? 1_000)),
      reduction: await measureReduction(fast.url, Number(process.env.BENCH_EVERY_ORDER ?? 2_000)),
      crashes: await measureCrashLoop(fast.url, {
        crash: ['crash'],
        error: ['error'],
        'half-open': ['half-open'],
        zombie: ['zombie'],
        'all of these': undefined,
      }),
    }
  } finally {
    await fast.stop()
  }
}
