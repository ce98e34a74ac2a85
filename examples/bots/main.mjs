// Bots that add numbers: several processes take jobs from one queue, some are killed in the middle of their work, one stands still for longer than its lease, and the rest takes over. In
// the end everything is counted: it exits with 0 only if each job was done, and its sum is in the table exactly once.
//
//   node examples/bots/main.mjs
//   BOTS=10 JOBS=1000 KILLS=6 WORK_MS=100 node examples/bots/main.mjs
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { Dibs } from 'dibs'
import { defineSums, LEDGER } from './sums.mjs'
import { View } from './view.mjs'

const number = (name, fallback) => Number(process.env[name] ?? fallback)
const BOTS = number('BOTS', 6)
const JOBS = number('JOBS', 240)
const WORK_MS = number('WORK_MS', 400)
/** At least one must be left that is neither killed nor stands still. */
const KILLS = Math.min(number('KILLS', 3), Math.max(0, BOTS - 2))
/** Longer than the lease of a second. */
const FROZEN_MS = 2_500
const DEADLINE_MS = number('DEADLINE_MS', 120_000)

const dibs = await Dibs.open({ logger: false })
await dibs.pool.query(LEDGER)
const jobs = defineSums(dibs)
const view = new View()
const random = (most) => Math.floor(Math.random() * most)

const bots = Array.from({ length: BOTS }, (_, n) => start(`bot ${n + 1}`))
let overdue = 0

function start(name) {
  const child = spawn(process.execPath, [join(import.meta.dirname, 'bot.mjs')], {
    env: { ...process.env, WORK_MS: String(WORK_MS) },
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  })
  const bot = { name, child, state: 'starting' }
  bot.ready = new Promise((resolve) => child.on('message', ({ what }) => what === 'ready' && resolve()))
  child.on('message', (message) => onNews(bot, message))
  bot.ended = new Promise((resolve) => child.once('exit', resolve))
  child.once('exit', (code) => {
    if (bot.state === 'killed') return
    if (code !== 0) view.say(`${name} has ended by itself, with ${code}`)
    bot.state = 'stopped'
  })
  return bot
}

/** What bots notice of each other. */
function onNews(bot, { what, id, worker, state }) {
  if (what === 'recovered')
    view.say(`job ${id} was taken from ${nameOf(worker)}, which is silent, and is ${state} again`)
  if (what === 'lost') {
    overdue++
    view.say(`${bot.name} finds that its time for job ${id} is over`)
  }
}

/** A worker is named by host, process and a random part. */
const nameOf = (worker) =>
  bots.find(({ child }) => worker.split(':').at(-2) === `${child.pid}`)?.name ?? worker

await Promise.race([Promise.all(bots.map(({ ready }) => ready)), rejectAfter(DEADLINE_MS, 'bots to start')])
for (const bot of bots) bot.state = 'idle'
const numbers = Array.from({ length: JOBS }, () => ({ a: random(100), b: random(100) }))
const added = await jobs.addMany(numbers.map((input) => ({ name: 'sum', input })))
const inputs = new Map(added.map(({ id }, n) => [id, numbers[n]]))
const ids = [...inputs.keys()]
view.say(`${JOBS} jobs were added, for ${BOTS} bots with two hands each`)

/** Reads the state of workers, queue and jobs from the database. */
async function readProgress() {
  const [{ items: workers }, { items: queues }, { rows }] = await Promise.all([
    dibs.workers.list({}, { limit: 1_000 }),
    dibs.queues.list({ prefix: 'bots' }),
    dibs.pool.query(
      'select pid, count(distinct job)::int as done from bots_example where job = any ($1) group by pid',
      [ids],
    ),
  ])
  const lane = queues
    .find(({ queue }) => queue === 'bots')
    ?.lanes.find(({ name, version }) => name === 'sum' && version === 1)
  for (const bot of bots) {
    const { running = [] } = workers.find(({ pid }) => pid === bot.child.pid) ?? {}
    bot.running = running
    bot.done = rows.find(({ pid }) => pid === bot.child.pid)?.done ?? 0
    if (['idle', 'working'].includes(bot.state)) bot.state = running.length > 0 ? 'working' : 'idle'
  }
  const counts = {
    added: JOBS,
    ready: lane?.ready.count ?? 0,
    running: lane?.running.count ?? 0,
    done: rows.reduce((sum, { done }) => sum + done, 0),
  }
  const shown = bots.map(({ name, child, state, running, done }) => ({
    ...{ name, pid: child.pid, state, done },
    does: running.map((id) => `${id}: ${inputs.get(id)?.a} + ${inputs.get(id)?.b}`).join('   '),
  }))
  view.show({ bots: shown, jobs: counts })
  return counts
}

/** One of those that are at work, and not the last of them. */
function victim() {
  const working = bots.filter(({ state }) => state === 'working')
  return working.length > 1 ? working[random(working.length)] : undefined
}

function kill() {
  const bot = victim()
  if (!bot) return false
  bot.state = 'killed'
  bot.child.kill('SIGKILL')
  view.say(`${bot.name} is killed, with ${bot.running.join(' and ')} in its hands`)
  return true
}

function freeze() {
  const bot = victim()
  if (!bot) return false
  bot.state = 'frozen'
  bot.child.kill('SIGSTOP')
  view.say(`${bot.name} stands still, with ${bot.running.join(' and ')} in its hands`)
  setTimeout(() => {
    bot.child.kill('SIGCONT')
    bot.state = 'idle'
    view.say(`${bot.name} goes on, as if nothing had happened`)
  }, FROZEN_MS)
  return true
}

/** Each when so much of the work is done, so that there is always something left to take over. */
const accidents = [freeze, ...Array.from({ length: KILLS }, () => kill)].map((strike, n, { length }) => ({
  strike,
  from: (JOBS * (n + 1)) / (length + 2),
}))

const until = performance.now() + DEADLINE_MS
for (;;) {
  const { done, running, ready } = await readProgress()
  if (done >= accidents[0]?.from && accidents[0].strike()) accidents.shift()
  const isOver = done >= JOBS && running === 0 && ready === 0 && !bots.some(({ state }) => state === 'frozen')
  if (isOver || performance.now() > until) break
  await new Promise((resolve) => setTimeout(resolve, 100))
}
// One that has just woken up may still have something to say.
await new Promise((resolve) => setTimeout(resolve, 300))
await readProgress()

for (const { child, state } of bots) if (state !== 'killed') child.kill('SIGTERM')
await Promise.race([Promise.all(bots.map(({ ended }) => ended)), rejectAfter(15_000, 'bots to stop')])

const isRight = await reckon()
await dibs.pool.query('drop table bots_example')
await dibs.close()
process.exitCode = isRight ? 0 : 1

/** Everything is counted anew, from what is kept. */
async function reckon() {
  const { rows } = await dibs.pool.query('select job, sum from bots_example where job = any ($1)', [ids])
  const sums = new Map(ids.map((id) => [id, []]))
  for (const { job, sum } of rows) sums.get(job)?.push(sum)
  const outcomes = { succeeded: 0, lost: 0, other: 0 }
  let once = 0
  for (const [id, { a, b }] of inputs) {
    const history = (await jobs.history(id)).items
    for (const { outcome } of history) outcomes[outcome in outcomes ? outcome : 'other']++
    const [sum, ...more] = sums.get(id)
    const isRecordedOnce = history.filter(({ outcome }) => outcome === 'succeeded').length === 1
    if (sum === a + b && more.length === 0 && isRecordedOnce) once++
  }
  const killed = bots.filter(({ state }) => state === 'killed').length
  const { succeeded, lost, other } = outcomes
  const line = (what, count, note = '') =>
    console.log(`  ${what.padEnd(20)} ${String(count).padStart(5)}   ${note}`.trimEnd())
  console.log()
  line('jobs added', JOBS)
  line('done exactly once', once, 'one row with the right sum, one attempt that succeeded')
  line('not so', JOBS - once)
  line('attempts', succeeded + lost + other, `${succeeded} succeeded, ${lost} lost with their bot`)
  line('held for too long', overdue, 'by a bot that stood still: what it writes late is refused')
  line('bots', BOTS, `${killed} killed, ${BOTS - killed} stopped in order`)
  const isRight = once === JOBS && succeeded === JOBS && other === 0 && killed === KILLS
  console.log(isRight ? '\nAll is right.' : '\nSomething is wrong.')
  return isRight
}

function rejectAfter(ms, what) {
  return new Promise((_, reject) => {
    setTimeout(() => reject(new Error(`waited for ${what} for ${ms} ms`)), ms).unref()
  })
}
