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
/** What they do, each of which must have been done and been tried. */
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

interface Asked {
  readonly quota: string
  readonly id: string
  readonly amount: number
}

type Told =
  | ({ readonly at: 'asked' | 'taken' | 'refunding' } & Asked)
  | { readonly at: 'done' | 'refused'; readonly kind: string; readonly code?: string }
  | { readonly at: 'failed'; readonly kind: string; readonly error: string }
  | { readonly at: 'not taken'; readonly id: string }
  | { readonly at: 'ready' | 'over' }

export interface StormReport {
  readonly counts: Readonly<Record<string, number>>
  readonly kills: number
  readonly looks: number
  /** Takes that a process had asked for when it was killed, and that another has asked for again. */
  readonly repeated: number
  readonly problems: readonly string[]
}

/** It may be dead by now. */
const ignore = (): void => {}

/** Eight processes take, reserve and give back of one subject, and are killed in the midst of it. */
export async function quotaStorm(options: StormOptions): Promise<StormReport> {
  const { dibs, pool, url, awards, seconds, seed } = options
  const random = seededRandom(seed)
  const counts: Record<string, number> = {}
  const problems: string[] = []
  /** Answered: each must be there, unless somebody has begun to give it back. */
  const answered = new Map<string, Asked>()
  const refunding = new Set<string>()
  const asked = new Map<string, Asked>()
  const children = new Set<ChildProcess>()
  let kills = 0
  let repeated = 0
  let looks = 0

  const listen = (child: ChildProcess, mine: Map<string, Asked>, told: Told): void => {
    if (told.at === 'asked') mine.set(told.id, told)
    else if (told.at === 'taken') {
      mine.delete(told.id)
      answered.set(told.id, told)
    } else if (told.at === 'not taken') mine.delete(told.id)
    else if (told.at === 'refunding') refunding.add(told.id)
    else if (told.at === 'failed') problems.push(`${told.kind}: ${told.error}`)
    else if (told.at === 'done' || told.at === 'refused')
      counts[`${told.kind} ${told.at}`] = (counts[`${told.kind} ${told.at}`] ?? 0) + 1
    else if (told.at === 'ready') {
      for (const one of asked.values()) {
        mine.set(one.id, one)
        child.send({ ...one, at: 'again' }, ignore)
        repeated++
      }
      asked.clear()
    }
  }

  function start(): void {
    const settings = { url, schema: dibs.schema, awards, limit: LIMIT, windowMs: WINDOW_MS, callers: 3 }
    const child = fork(script, [JSON.stringify(settings)])
    const mine = new Map<string, Asked>()
    children.add(child)
    child.on('message', (told: Told) => listen(child, mine, told))
    // What it has told before it died is read by then.
    void Promise.all([once(child, 'exit'), once(child, 'disconnect')]).then(() => {
      children.delete(child)
      for (const [id, one] of mine) asked.set(id, one)
    })
  }

  const quotas = [
    dibs.quota('stock', { limit: LIMIT }),
    dibs.quota('window', { limit: LIMIT, perMs: WINDOW_MS }),
  ] as const

  /** At every moment: counters fit entries, and no window has more than its limit. */
  async function look(): Promise<void> {
    looks++
    for (const quota of quotas)
      for (const drift of (await quota.verify()).items)
        problems.push(`${quota.name} drifts: ${JSON.stringify(drift)}`)
    const { rows } = await pool.query(
      `select name, starts_at, sum(case state when 'held' then asked else amount end)::int as sum
       from ${dibs.schema}.quota_entry where state in ('taken', 'refunded', 'held') and (name = 'stock' or state <> 'held')
       group by name, starts_at having sum(case when state = 'held' and expires_at <= clock_timestamp() then 0 when state = 'held'
         then asked else amount end) > ${LIMIT}`,
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
      await look()
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
    await look()
    await judge()
  } finally {
    for (const child of children) child.kill('SIGKILL')
  }
  return { counts, kills, looks, repeated, problems: problems.slice(0, 10) }

  async function judge(): Promise<void> {
    const { rows } = await pool.query(
      `select name, id, amount::int, asked::int, state from ${dibs.schema}.quota_entry`,
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
    // What the dead had reserved runs out, and then all of the rest can be had.
    const [stock] = quotas
    await until(async () => (await stock.peek('hot')).held === 0, 'reservations to run out', 5_000)
    while ((await stock.tryTake('hot', 1, { id: `last-${Math.random()}` })).ok);
    const { used, held, remaining } = await stock.peek('hot')
    if (used !== LIMIT || held !== 0 || remaining !== 0)
      problems.push(`the limit is not reached: ${used}, ${held}`)
    await look()
  }
}
