import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type pg from 'pg'
import type { Dibs } from '../../src/dibs.js'
import { seededRandom } from '../../src/testing/seeded-random.js'
import { until } from '../until.js'

const script = join(import.meta.dirname, '../children/take-quota.mjs')
const PROCESSES = 8
export const LIMIT = 60
export const WINDOW_MS = 1_400
/** The calls of the storm. Each must have succeeded and have been refused at least once. */
export const kinds = ['take', 'anonymous', 'award', 'settle', 'void', 'refund'] as const

export interface StormOptions {
  readonly dibs: Dibs
  readonly pool: pg.Pool
  readonly url: string
  /** A table of what was awarded, qualified. */
  readonly awards: string
  readonly seconds: number
  readonly seed: number
}

interface TakeRequest {
  readonly quota: string
  readonly id: string
  readonly amount: number
}

type ChildMessage =
  | ({ readonly at: 'asked' | 'taken' | 'refunding' } & TakeRequest)
  | { readonly at: 'done' | 'refused'; readonly kind: string; readonly code?: string }
  | { readonly at: 'failed'; readonly kind: string; readonly error: string }
  | { readonly at: 'not taken'; readonly id: string }
  | { readonly at: 'ready' | 'over' }

export interface StormReport {
  readonly counts: Readonly<Record<string, number>>
  readonly kills: number
  readonly checks: number
  /** Takes that a process had asked for when it was killed, and that another has asked for again. */
  readonly repeated: number
  readonly problems: readonly string[]
}

/** The process may be dead by now. */
const ignore = (): void => {}

/** Eight processes take, reserve and give back of one subject, and are killed in the midst of it. */
export async function quotaStorm(options: StormOptions): Promise<StormReport> {
  const { dibs, pool, url, awards, seconds, seed } = options
  const random = seededRandom(seed)
  const counts: Record<string, number> = {}
  const problems: string[] = []
  /** Answered: each must be there, unless somebody has begun to give it back. */
  const answered = new Map<string, TakeRequest>()
  const refunding = new Set<string>()
  const unanswered = new Map<string, TakeRequest>()
  const children = new Set<ChildProcess>()
  let kills = 0
  let repeated = 0
  let checks = 0

  const listen = (child: ChildProcess, mine: Map<string, TakeRequest>, message: ChildMessage): void => {
    if (message.at === 'asked') mine.set(message.id, message)
    else if (message.at === 'taken') {
      mine.delete(message.id)
      answered.set(message.id, message)
    } else if (message.at === 'not taken') mine.delete(message.id)
    else if (message.at === 'refunding') refunding.add(message.id)
    else if (message.at === 'failed') problems.push(`${message.kind}: ${message.error}`)
    else if (message.at === 'done' || message.at === 'refused')
      counts[`${message.kind} ${message.at}`] = (counts[`${message.kind} ${message.at}`] ?? 0) + 1
    else if (message.at === 'ready') {
      for (const one of unanswered.values()) {
        mine.set(one.id, one)
        child.send({ ...one, at: 'again' }, ignore)
        repeated++
      }
      unanswered.clear()
    }
  }

  function start(): void {
    const settings = { url, schema: dibs.schema, awards, limit: LIMIT, windowMs: WINDOW_MS, callers: 3 }
    const child = fork(script, [JSON.stringify(settings)])
    const mine = new Map<string, TakeRequest>()
    children.add(child)
    child.on('message', (message: ChildMessage) => listen(child, mine, message))
    // The messages of the dead process are read by then.
    void Promise.all([once(child, 'exit'), once(child, 'disconnect')]).then(() => {
      children.delete(child)
      for (const [id, one] of mine) unanswered.set(id, one)
    })
  }

  const quotas = [
    dibs.quota('stock', { limit: LIMIT }),
    dibs.quota('window', { limit: LIMIT, perMs: WINDOW_MS }),
  ] as const

  /** Checks that counters fit their entries, and that no window has more than its limit. */
  async function check(): Promise<void> {
    checks++
    for (const quota of quotas)
      for (const drift of (await quota.verify()).items)
        problems.push(`${quota.name} drifts: ${JSON.stringify(drift)}`)
    const { rows } = await pool.query(
      `select name, starts_at, sum(case state when 'held' then requested else amount end)::int as sum
       from ${dibs.schema}.quota_entry where state in ('taken', 'refunded', 'held') and (name = 'stock' or state <> 'held')
       group by name, starts_at having sum(case when state = 'held' and expires_at <= clock_timestamp() then 0 when state = 'held'
         then requested else amount end) > ${LIMIT}`,
    )
    for (const row of rows) problems.push(`over the limit: ${JSON.stringify(row)}`)
  }

  try {
    for (let n = 0; n < PROCESSES; n++) start()
    const end = performance.now() + seconds * 1_000
    // On a machine that has other things to do, longer, so that enough is tested.
    const enough = () =>
      answered.size > 20 &&
      kills > 2 &&
      counts['take refused'] &&
      kinds.every((kind) => counts[`${kind} done`])
    while (performance.now() < end || (!enough() && performance.now() < end + 60_000)) {
      await sleep(100 + 200 * random())
      await check()
      const live = [...children]
      const victim = live[Math.floor(random() * live.length)]
      if (answered.size > 0 && victim && random() < 0.7) {
        victim.kill('SIGKILL')
        kills++
        start()
      }
    }
    for (const child of children) if (child.connected) child.send({ at: 'over' }, ignore)
    await until(() => children.size === 0, 'the processes to end', 120_000)
    await check()
    await judge()
  } finally {
    for (const child of children) child.kill('SIGKILL')
  }
  return { counts, kills, checks, repeated, problems: problems.slice(0, 10) }

  async function judge(): Promise<void> {
    const { rows } = await pool.query(
      `select name, id, amount::int, requested::int as asked, state from ${dibs.schema}.quota_entry`,
    )
    const entries = new Map(rows.map((row) => [row.id, row]))
    for (const { id, amount } of answered.values()) {
      const entry = entries.get(id)
      if (!entry || entry.asked !== amount || (!refunding.has(id) && entry.state !== 'taken'))
        problems.push(`answered, and not there as it was: ${id} ${JSON.stringify(entry)}`)
    }
    const awarded = await pool.query(`select quota as name, id, amount from ${awards} order by id`)
    const taken = rows
      .filter(({ id }) => id.startsWith('award-'))
      .map(({ name, id, amount }) => ({ name, id, amount }))
      .sort((a, b) => (a.id < b.id ? -1 : 1))
    if (JSON.stringify(awarded.rows) !== JSON.stringify(taken))
      problems.push(`${awarded.rows.length} were awarded, and ${taken.length} taken for it`)
    // The reservations of dead processes expire. Then the whole rest is available.
    const [stock] = quotas
    await until(async () => (await stock.peek('hot')).held === 0, 'reservations to run out', 5_000)
    while ((await stock.tryTake('hot', 1, { id: `last-${Math.random()}` })).ok);
    const { used, held, remaining } = await stock.peek('hot')
    if (used !== LIMIT || held !== 0 || remaining !== 0)
      problems.push(`the limit is not reached: ${used}, ${held}`)
    await check()
  }
}
