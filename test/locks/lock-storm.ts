import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type pg from 'pg'
import { seededRandom } from '../../src/testing/seeded-random.js'
import { until } from '../until.js'

const script = join(import.meta.dirname, '../children/fight-for-lock.mjs')
const PROCESSES = 8
const TTL_MS = 150
/** If nobody has counted for so long, something holds all of them up. */
const STUCK_MS = 30_000

export const faults = ['SIGKILL', 'SIGSTOP'] as const
type Fault = (typeof faults)[number]

type StormMessage =
  | { readonly at: 'ready' | 'over' }
  | { readonly at: 'held'; readonly fence: number; readonly from?: number }
  | { readonly at: 'counted'; readonly fence: number }
  | {
      readonly at: 'refused'
      readonly fence: number
      readonly how: 'handle' | 'server'
      readonly code: string
    }
  | { readonly at: 'failed'; readonly error: string }

export interface LockStormOptions {
  /** How the processes acquire the lock. */
  readonly way: 'lock' | 'elect'
  readonly pool: pg.Pool
  readonly url: string
  readonly schema: string
  readonly world: string
  readonly seconds: number
  /** Goes on until each figure has reached this, or twelve times as long. */
  readonly atLeast: number
  readonly seed: number
}

/** The holders that each kind of fault has struck, and the results. */
export interface FaultCount {
  readonly fault: Fault
  /** Holders that had begun and not counted. */
  hits: number
  takeovers: number
  /** Late writes of holders that were stopped. */
  refused: number
}

export interface LockStormReport {
  readonly counts: readonly FaultCount[]
  readonly counted: number
  /** By the server alone, without the handle's own clock. */
  readonly refusedByServer: number
  readonly longestStandstillMs: number
  readonly problems: readonly string[]
}

class Fighter {
  readonly #process: ChildProcess
  readonly #gone: Promise<unknown>
  isReady = false
  isStruck = false
  /** The fence of the lock that the process holds and has not counted under. */
  fence: number | undefined
  #isExpected = false

  constructor(settings: object, onMessage: (fighter: Fighter, message: StormMessage) => void) {
    this.#process = fork(script, [JSON.stringify(settings)])
    this.#gone = Promise.all([once(this.#process, 'exit'), once(this.#process, 'disconnect')])
    this.#process.on('exit', (code, signal) => {
      if (!this.#isExpected)
        onMessage(this, { at: 'failed', error: `a process died by itself: ${signal ?? code}` })
    })
    this.#process.on('message', (message: StormMessage) => {
      if (message.at === 'ready') this.isReady = true
      else if (message.at === 'over') this.#isExpected = true
      else if (message.at === 'held') this.fence = message.fence
      else this.fence = undefined
      onMessage(this, message)
    })
  }

  signal(signal: 'SIGSTOP' | 'SIGCONT'): void {
    this.#process.kill(signal)
  }

  /** Waits until all messages of the process are read. */
  async kill(): Promise<void> {
    this.#isExpected = true
    this.#process.kill('SIGKILL')
    await this.#gone
  }

  async end(): Promise<void> {
    this.#process.send({ at: 'over' }, () => {})
    await this.#gone
  }
}

/** Eight processes fight over one lock, or to lead, and whoever has it is killed, or stopped for longer than its lease lasts. */
export async function lockStorm(options: LockStormOptions): Promise<LockStormReport> {
  const { pool, url, schema, world, seconds, atLeast, seed, way } = options
  const random = seededRandom(seed)
  const fighters = new Set<Fighter>()
  const problems: string[] = []
  const counts: FaultCount[] = faults.map((fault) => ({ fault, hits: 0, takeovers: 0, refused: 0 }))
  /** Fences whose holders were struck, until another has taken over. */
  const struck = new Map<number, FaultCount>()
  const stopped = new Map<number, FaultCount>()
  const takenOver = new Set<number>()
  const given = new Set<number>()
  let counted = 0
  let refusedByServer = 0
  let lastCountAt = performance.now()
  let longestStandstillMs = 0
  let onHeld: ((fighter: Fighter) => void) | undefined

  const hear = (fighter: Fighter, message: StormMessage): void => {
    if (message.at === 'failed') problems.push(message.error)
    else if (message.at === 'held') {
      // In which order they were given is asked of the server: what processes say comes in any.
      if (given.has(message.fence)) problems.push(`fence ${message.fence} was given twice`)
      given.add(message.fence)
      if (message.from !== undefined) {
        takenOver.add(message.from)
        const count = struck.get(message.from)
        if (count) count.takeovers++
        struck.delete(message.from)
      }
      onHeld?.(fighter)
    } else if (message.at === 'counted') {
      counted++
      longestStandstillMs = Math.max(longestStandstillMs, performance.now() - lastCountAt)
      lastCountAt = performance.now()
    } else if (message.at === 'refused') {
      const count = stopped.get(message.fence)
      if (count) {
        count.refused++
        if (message.how === 'server' && message.code === 'DIBS_DATABASE') refusedByServer++
      }
    }
  }
  const start = (): void => {
    const settings = { url, schema, world, way, leaseMs: TTL_MS }
    fighters.add(new Fighter(settings, hear))
  }

  /** A process that has the lock and has not reported that it has counted. */
  async function aim(): Promise<Fighter | undefined> {
    const holder = new Promise<Fighter>((resolve) => {
      onHeld = (fighter) => {
        if (!fighter.isStruck) resolve(fighter)
      }
    })
    const found = await Promise.race([holder, sleep(STUCK_MS).then(() => undefined)])
    onHeld = undefined
    if (!found) problems.push(`nobody got the lock for ${STUCK_MS} ms`)
    return found
  }

  const hasCounted = async (fence: number): Promise<boolean> =>
    ((await pool.query(`select from ${world}.history where fence = $1`, [fence])).rowCount ?? 0) > 0

  async function strike(fault: Fault): Promise<void> {
    const fighter = await aim()
    const fence = fighter?.fence
    if (!fighter || fence === undefined) return
    fighter.isStruck = true
    const count = counts.find((one) => one.fault === fault) as FaultCount
    if (fault === 'SIGKILL') {
      fighters.delete(fighter)
      await fighter.kill()
      start()
    } else fighter.signal('SIGSTOP')
    // The process may have counted before the fault.
    if (!(await hasCounted(fence))) {
      count.hits++
      if (takenOver.has(fence)) count.takeovers++
      else struck.set(fence, count)
      if (fault === 'SIGSTOP') stopped.set(fence, count)
    }
    if (fault === 'SIGSTOP') {
      await sleep(TTL_MS * (1.2 + random()))
      await until(() => !struck.has(fence), 'another to take over', STUCK_MS).catch((error) =>
        problems.push(`${error}`),
      )
      fighter.signal('SIGCONT')
      fighter.isStruck = false
    }
  }

  const isEnough = (): boolean =>
    refusedByServer > 0 &&
    counts.every(({ fault, hits, takeovers, refused }) =>
      [hits, takeovers, ...(fault === 'SIGSTOP' ? [refused] : [])].every((figure) => figure >= atLeast),
    )

  for (let n = 0; n < PROCESSES; n++) start()
  try {
    await until(() => [...fighters].every(({ isReady }) => isReady), 'processes to start', 120_000)
    lastCountAt = performance.now()
    const startedAt = performance.now()
    const isTime = (factor: number): boolean => performance.now() - startedAt > factor * seconds * 1_000
    for (let turn = 0; problems.length === 0 && !(isTime(1) && isEnough()) && !isTime(12); turn++) {
      // Between two faults somebody gets on.
      const before = counted
      await until(() => counted >= before + 3, 'somebody to count', STUCK_MS).catch((error) =>
        problems.push(`${error}`),
      )
      await strike(faults[turn % faults.length] as Fault)
    }
    // The last struck holder has a successor, and each stopped process an answer.
    await until(() => struck.size === 0, 'the last to be taken over', STUCK_MS).catch((error) =>
      problems.push(`${error}`),
    )
    await Promise.all([...fighters].map((fighter) => fighter.end()))
  } finally {
    await Promise.all([...fighters].map((fighter) => fighter.kill()))
  }
  if (longestStandstillMs > STUCK_MS)
    problems.push(`nobody counted for ${Math.round(longestStandstillMs)} ms`)
  return { counts, counted, refusedByServer, longestStandstillMs, problems }
}
