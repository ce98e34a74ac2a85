// Processes that lock when they are told to; this file is also what they run.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import { openLockers } from './lockers.mjs'

export const PROCESSES = 8
/** How many may be in flight in each. */
const MOST = 16

/** Milliseconds of a clock that all processes of a machine share. */
export const now = () => Number(process.hrtime.bigint()) / 1e6

export class LockProcesses {
  #children = []
  #env

  constructor(url, redisUrl) {
    this.#env = { ...process.env, BENCH_LOCKS: JSON.stringify([url, redisUrl]) }
  }

  async open() {
    this.#children = Array.from({ length: PROCESSES }, () =>
      fork(import.meta.filename, [], { env: this.#env }),
    )
    await Promise.all(this.#children.map((child) => once(child, 'message')))
  }

  async close() {
    for (const child of this.#children) child.disconnect()
    await Promise.all(this.#children.map((child) => once(child, 'exit')))
  }

  /** Each takes and gives back names of its own, again and again; returns how often a second in all, and how long each took. */
  async spread(locker, inFlight, ms) {
    const rounds = await this.#tell({ work: 'spread', locker, inFlight: inFlight / PROCESSES, ms })
    return {
      perSecond: rounds.reduce((sum, { perSecond }) => sum + perSecond, 0),
      took: rounds.flatMap(({ took }) => took),
    }
  }

  /** All of them want one name; returns what each process had of it, by the clock of all. */
  async contend(locker, name, waiters, ms) {
    const startAt = now() + 50
    return await this.#tell({
      work: 'contend',
      locker,
      name,
      inFlight: waiters / PROCESSES,
      startAt,
      until: startAt + ms,
    })
  }

  #tell(round) {
    return Promise.all(
      this.#children.map(async (child) => {
        child.send(round)
        const [answer] = await once(child, 'message')
        if (answer.error) throw new Error(answer.error)
        return answer
      }),
    )
  }
}

const HOLD_MS = 2

async function spread(lock, { inFlight, ms }) {
  const startedAt = now()
  const took = []
  const loop = async (_, who) => {
    for (let at = now(); at < startedAt + ms; at = now()) {
      const held = await lock(`spread:${process.pid}:${who}:${Math.floor(Math.random() * 40)}`)
      await held.release()
      took.push(now() - at)
    }
  }
  await Promise.all(Array.from({ length: inFlight }, loop))
  return { perSecond: (took.length * 1000) / (now() - startedAt), took }
}

/** Each that it had: since when, when it began to give it back, when that was answered, and its fence. */
async function contend(lock, { name, inFlight, startAt, until }) {
  const holds = []
  await sleep(startAt - now())
  const loop = async () => {
    while (now() < until) {
      const held = await lock(name)
      const hasAt = now()
      if (hasAt < until) await sleep(HOLD_MS)
      const givesAt = now()
      await held.release()
      holds.push([hasAt, givesAt, now(), held.fence ?? 0])
    }
  }
  await Promise.all(Array.from({ length: inFlight }, loop))
  return holds
}

if (process.env.BENCH_LOCKS && process.send) {
  const { lockers, close } = await openLockers(...JSON.parse(process.env.BENCH_LOCKS), MOST)
  process.on('message', async (round) => {
    try {
      process.send(await (round.work === 'spread' ? spread : contend)(lockers[round.locker], round))
    } catch (error) {
      process.send({ error: String(error) })
    }
  })
  process.on('disconnect', close)
  process.send('ready')
}
