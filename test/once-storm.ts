import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { Dibs } from '../src/dibs.js'
import { seededRandom } from '../src/testing/seeded-random.js'
// @ts-expect-error: plain JavaScript, since processes of their own run it too
import * as work from './children/once-work.mjs'
import { Calls, type CallsOptions } from './once-storm/calls.js'
import { finishLeftOver } from './once-storm/finish-left-over.js'
import { type Fault, faults, Hits } from './once-storm/hits.js'
import { LEFT_OVER, Plans } from './once-storm/plans.js'
import { type Held, StormChild, type StormMessage } from './once-storm/storm-child.js'
import type { StormReport } from './once-storm/storm-report.js'
import { createWorld, findUnknownFences, inspectWorld } from './once-storm/world.js'
import { until } from './until.js'

const PROCESSES = 8
/** Dealt like cards, so that none is rare by chance. Fewest of that after which a process starts anew, which all others feel. */
const deck: readonly Fault[] = [
  ...Array<Fault>(2).fill('SIGKILL'),
  ...Array<Fault>(3).fill('SIGSTOP'),
  ...Array<Fault>(4).fill('terminate'),
]

export interface StormOptions extends CallsOptions {
  readonly url: string
  readonly schema: string
  readonly world: string
  readonly seed: number
  /** One fault for so many answers: as many on a slow machine as on a fast one. */
  readonly callsPerFault: number
}

/** See once.storm.test.ts. */
export async function onceStorm(options: StormOptions): Promise<StormReport> {
  const pool = new pg.Pool({ connectionString: options.url, max: 3 })
  pool.on('error', () => {})
  const dibs = await Dibs.open({ pool, schema: options.schema, listen: false, maintain: false })
  await createWorld(pool, options.schema, options.world)
  const storm = new Storm(options, dibs)
  try {
    return await storm.run()
  } finally {
    await storm.end()
    await dibs.close()
    await pool.query(`drop schema ${options.world} cascade; drop schema ${options.schema} cascade`)
    await pool.end()
  }
}

class Storm {
  readonly #options: StormOptions
  readonly #dibs: Dibs
  readonly #chance: () => number
  readonly #plans: Plans
  readonly #calls: Calls
  readonly #children = new Set<StormChild>()
  readonly #hits: Hits
  readonly #answers = new Map<string, Set<string>>()
  readonly #answered = new Set<number>()
  readonly #problems: string[] = []
  readonly #fences = new Set<number>()
  readonly #begun = new Set<string>()
  readonly #again: Record<string, number> = {}
  readonly #faultsUnderWay = new Set<Promise<void>>()
  readonly #dealt: Fault[] = []
  readonly #startedAt = performance.now()
  #onEnding: (() => void) | undefined
  #answersLost = 0
  #isOver = false

  constructor(options: StormOptions, dibs: Dibs) {
    this.#options = options
    this.#dibs = dibs
    // Two of them, so that neither calls nor faults depend on how many of the other there were.
    this.#calls = new Calls(options, seededRandom(options.seed))
    this.#chance = seededRandom(options.seed + 1)
    this.#plans = new Plans(options.keys, options.seed)
    this.#hits = new Hits((key) => this.#plans.hashOf(key))
  }

  async run(): Promise<StormReport> {
    for (let n = 0; n < PROCESSES; n++) this.#start()
    await until(() => [...this.#children].every(({ isReady }) => isReady), 'processes to start', 120_000)
    const striking = this.#strikeOn()
    await this.#callOn()
    this.#isOver = true
    await striking
    await Promise.all(this.#faultsUnderWay)
    const maintained = this.#problems.length === 0 ? await this.#leaveToMaintenance() : 0
    return await this.#report(maintained)
  }

  async end(): Promise<void> {
    this.#isOver = true
    await Promise.all([...this.#children].map((child) => child.kill()))
  }

  #start(): void {
    const { url, schema, world, seed } = this.#options
    const settings = { url, schema, worldSchema: world, seed }
    this.#children.add(new StormChild(settings, (child, message) => this.#hear(child, message)))
  }

  #hear(child: StormChild, message: StormMessage): void {
    this.#hits.note(message)
    if (message.at === 'begin') {
      this.#begun.add(message.key)
      if (message.fence > 0) this.#fences.add(message.fence)
    } else if (message.at === 'died') this.#problems.push(`a process died by itself: ${message.how}`)
    else if (message.at === 'ending') this.#onEnding?.()
    else if (message.at === 'again') this.#again[message.code] = (this.#again[message.code] ?? 0) + 1
    else if (message.at === 'failed') this.#problems.push(`${message.key} was refused: ${message.error}`)
    else if (message.at === 'event' && message.name === 'unknown') this.#answersLost++
    else if (message.at === 'event' && message.name === 'gave-up') this.#problems.push('a claim was given up')
    else if (message.at === 'answer') this.#keep(message.call, message.key, message.text)
    this.#feed(child)
  }

  #keep(call: number, key: string, text: string): void {
    if (this.#answered.has(call)) this.#problems.push(`call ${call} was answered twice`)
    this.#answered.add(call)
    const texts = this.#answers.get(key) ?? new Set()
    this.#answers.set(key, texts.add(text))
  }

  // ── calls ─────────────────────────────────────────────────────────────────

  async #callOn(): Promise<void> {
    const { calls, seconds } = this.#options
    const untilAt = performance.now() + seconds * 1_000 + 120_000
    while (this.#answered.size < calls && this.#problems.length === 0) {
      if (performance.now() > untilAt) {
        const open = [...this.#children].flatMap((child) => [...child.calls.values()])
        this.#problems.push(`no answer to ${open.length} calls, such as ${JSON.stringify(open[0])}`)
      }
      await sleep(5)
      for (const child of this.#children) this.#feed(child)
    }
  }

  #feed(child: StormChild): void {
    while (child.isFree && !this.#isOver) {
      const call = this.#calls.next()
      if (!call) return
      child.send(call)
    }
  }

  // ── faults ────────────────────────────────────────────────────────────────

  async #strikeOn(): Promise<void> {
    const killer = new pg.Client({ connectionString: this.#options.url })
    await killer.connect()
    try {
      for (let strikes = 1; !this.#isOver; strikes++) {
        while (this.#answered.size < strikes * this.#options.callsPerFault && !this.#isOver) await sleep(5)
        const fault = this.#deal()
        const isLate = this.#chance() < 0.5
        // Half of the connections are ended when a handler has just ended, and its outcome is on its way; the others
        // when a transaction is open. Signals strike holders of leases: of a transaction the server takes care by itself.
        if (fault === 'terminate' && isLate) await this.#ending()
        const child = await this.#aim(({ fence }) => (fault === 'terminate' && !isLate) === (fence === 0))
        if (!child) break
        const underWay = this.#strike(fault, child, killer).finally(() => {
          this.#faultsUnderWay.delete(underWay)
        })
        this.#faultsUnderWay.add(underWay)
      }
      await Promise.all(this.#faultsUnderWay)
    } finally {
      await killer.end()
    }
  }

  #deal(): Fault {
    if (this.#dealt.length === 0) this.#dealt.push(...deck)
    return this.#dealt.splice(Math.floor(this.#chance() * this.#dealt.length), 1)[0] ?? 'SIGKILL'
  }

  #ending(): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, 200)
      this.#onEnding = () => {
        clearTimeout(timer)
        resolve()
      }
    })
  }

  /** A process that holds live work, so that no fault is wasted, while half of them are up to take over. */
  async #aim(isWanted: (held: Held) => boolean): Promise<StormChild | undefined> {
    for (; !this.#isOver; await sleep(5)) {
      const well = [...this.#children].filter((child) => child.isReady && !child.isStruck)
      const holders = well.filter(({ held }) => [...held.values()].some(isWanted))
      if (well.length > PROCESSES / 2 && holders.length > 0)
        return holders[Math.floor(this.#chance() * holders.length)]
    }
    return undefined
  }

  async #strike(fault: Fault, child: StormChild, killer: pg.Client): Promise<void> {
    child.isStruck = true
    const from = Date.now()
    if (fault === 'SIGKILL') {
      this.#children.delete(child)
      await child.kill()
      this.#hurry(this.#hits.strike(fault, child.held.values(), from))
      this.#calls.repeat(child.calls.values())
      if (!this.#isOver) this.#start()
      return
    }
    if (fault === 'SIGSTOP') {
      child.stop()
      // The messages of the dead process are read by then. Callers must be there when its leases expire.
      await sleep(work.LEASE_MS / 3)
      this.#hurry(this.#hits.strike(fault, child.held.values(), from))
      await sleep(work.LEASE_MS * (1 + 2 * this.#chance()))
      child.resume()
    } else await this.#terminate(child, killer, from)
    child.isStruck = false
  }

  async #terminate(child: StormChild, killer: pg.Client, from: number): Promise<void> {
    const { rowCount } = await killer.query(
      'select pg_terminate_backend(pid) from pg_stat_activity where pid = any($1::int[])',
      [[...child.backends]],
    )
    const at = Date.now()
    const struck = rowCount ? this.#hits.strike('terminate', child.held.values(), from) : []
    for (const held of struck) this.#hits.terminated(held, at)
  }

  #hurry(struck: readonly Held[]): void {
    for (const { key } of struck) this.#calls.hurry(this.#plans.numberOf(key))
  }

  // ── the end ───────────────────────────────────────────────────────────────

  /** All processes die over operations that nobody has called before; maintenance of another must finish these. */
  async #leaveToMaintenance(): Promise<number> {
    await until(() => [...this.#children].every(({ isReady }) => isReady), 'processes to be back', 120_000)
    const children = [...this.#children]
    this.#plans.leftOver.forEach((number, n) => {
      children[n % children.length]?.send({ call: this.#options.calls + n, number })
    })
    const isBegun = (number: number) => this.#begun.has(this.#plans.keyOf(number))
    await until(
      () => this.#plans.leftOver.filter(isBegun).length >= PROCESSES,
      'the last operations to begin',
      120_000,
    )
    await this.end()

    const keys = this.#plans.leftOver.map((number): [number, string] => [number, this.#plans.keyOf(number)])
    const { maintained, answers } = await finishLeftOver(this.#dibs, this.#options, new Map(keys))
    keys.forEach(([number, key], n) => {
      // Some had their answer before their process died; then this is another call.
      const call = this.#options.calls + n
      this.#keep(this.#answered.has(call) ? call + LEFT_OVER : call, key, answers.get(number) ?? '')
    })
    return maintained
  }

  async #report(maintained: number): Promise<StormReport> {
    const { schema, world, seed, calls } = this.#options
    const { pool } = this.#dibs
    const findings = await inspectWorld(pool, schema, world, this.#plans.all, this.#answers)
    const unknown = await findUnknownFences(pool, world, this.#fences)
    const missing = [...Array(calls + LEFT_OVER).keys()].filter((call) => !this.#answered.has(call))
    return {
      ...findings,
      problems: [
        ...this.#problems,
        ...findings.problems,
        ...(unknown.length > 0 ? [`fences that no claim ever had: ${unknown.slice(0, 5).join()}`] : []),
        ...(missing.length === 0 ? [] : [`${missing.length} calls have no answer`]),
      ].slice(0, 20),
      seed,
      elapsedMs: performance.now() - this.#startedAt,
      answered: this.#answered.size,
      counts: faults.map((fault) => this.#hits.count(fault)),
      unexplained: this.#hits.unexplained,
      threw: this.#hits.threw.size,
      notGivenBack: this.#hits.notGivenBack,
      answersLost: this.#answersLost,
      maintained,
      again: this.#again,
    }
  }
}
