import { ExplorationError, InvalidInputError } from '../../errors.js'
import type { Stage } from '../explore/stage/stage.js'
import { seededRandom } from '../seeded-random.js'
import { count } from './count.js'
import { CrashRun } from './crash-run.js'
import { type CrashMode, DEFAULT_MODES, decodeFault, encodeFault, type Fault, type Place } from './fault.js'
import { DEFAULT_CODES, endsConnection } from './injected-errors.js'
import type { CrashLoopOptions } from './options.js'
import type { RunRecord } from './record.js'
import { signEffect } from './report/paths.js'
import { Scene } from './scene.js'
import { CrashableServer } from './server-crash.js'
import { type StatementLine, type StoryLine, statementsOfRun } from './story.js'

const DEFAULT_PROCESS_POINTS = 10
const SIDES = ['before', 'after'] as const

/** What was run, and what came of it. */
export interface Findings {
  /** The run without a fault comes first. */
  readonly records: readonly RunRecord[]
  /** What `recover` did where nothing was run before. */
  readonly alone: readonly StoryLine[]
  /** Of each point in mode `process`: the same happened within this process. */
  readonly agreements: ReadonlyMap<string, boolean>
  /** Points that should have been there, and were not reached. */
  readonly missed: readonly string[]
  readonly runs: number
  readonly tookMs: number
}

/** Goes through the points. */
export class CrashSearch {
  readonly #stage: Stage
  readonly #options: CrashLoopOptions
  readonly #afterRun: () => void
  readonly #records: RunRecord[] = []
  readonly #agreements = new Map<string, boolean>()
  /** Points that a run without a fault has, and that were not reached. */
  readonly #missed: string[] = []
  #server: CrashableServer | undefined
  /** The statements of the run without a fault. */
  #statements: readonly StatementLine[] = []
  #runs = 0

  /** @param afterRun hears of the end of each run */
  constructor(stage: Stage, options: CrashLoopOptions, afterRun: () => void) {
    this.#stage = stage
    this.#afterRun = afterRun
    this.#options = options
  }

  async run(): Promise<Findings> {
    const { replay } = this.#options
    const modes = [...new Set(this.#options.modes ?? DEFAULT_MODES)]
    const startedAt = performance.now()
    const wanted = replay === undefined ? undefined : decodeFault(replay)
    if (replay === undefined ? modes.includes('server') : wanted?.mode === 'server')
      this.#server = await CrashableServer.find(this.#stage)
    const base = await this.#try(undefined)
    this.#records.push(base)
    this.#statements = statementsOfRun(base.story)
    if (this.#statements.length === 0 && base.run === 'fulfilled') throw sentNothing()
    let alone: readonly StoryLine[] = []
    if (!base.failure) {
      alone = await this.#newRun(undefined).recoverAlone()
      this.#runs++
      if (wanted) await this.#replay(wanted)
      if (replay === undefined) await this.#runModes(modes)
    }
    return {
      records: this.#records,
      alone,
      agreements: this.#agreements,
      missed: this.#missed,
      runs: this.#runs,
      tookMs: Math.round(performance.now() - startedAt),
    }
  }

  #newRun(fault: Fault | undefined): CrashRun {
    return new CrashRun(new Scene(this.#stage, this.#options, fault), this.#server)
  }

  async #try(fault: Fault | undefined): Promise<RunRecord> {
    this.#runs++
    const record = await this.#newRun(fault).run()
    this.#afterRun()
    return record
  }

  async #replay(fault: Fault): Promise<void> {
    const record = await this.#try(fault)
    if (fault.mode === 'process' && !record.isReached) throw childNotThere(record)
    if (!record.isReached || (fault.again && !record.isReachedAgain))
      throw new InvalidInputError(
        'replay',
        `names a point that was not reached, ${encodeFault(fault)}: without a fault, \`run\` has ${count(this.#statements.length, 'statement')}`,
      )
    this.#records.push(record)
  }

  async #runModes(modes: readonly CrashMode[]): Promise<void> {
    for (const mode of modes) await this.#runMode(mode)
    if (this.#options.duringRecovery) await this.#crashTwice()
  }

  async #runMode(mode: CrashMode): Promise<void> {
    if (mode === 'process') return this.#runProcesses()
    // Until a run completes without having come to its point.
    for (let statement = 1; ; statement++) {
      const faults = SIDES.flatMap((side) => this.#faultsAt(mode, { side, statement }))
      if (faults.length === 0 && statement > this.#statements.length) return
      for (const fault of faults) {
        const record = await this.#try(fault)
        // What goes wrong without its fault has gone wrong as well.
        if (record.isReached || record.failure) this.#records.push(record)
        if (record.isReached) continue
        if (statement > this.#statements.length) return
        this.#missed.push(encodeFault(fault))
      }
    }
  }

  /** What one crash does not break, two may. */
  async #crashTwice(): Promise<void> {
    const once = this.#records.flatMap(({ fault }) => (fault?.mode === 'crash' ? [fault] : []))
    for (const fault of once) await this.#crashRecovery(fault)
  }

  #faultsAt(mode: CrashMode, place: Place): readonly Fault[] {
    const line = this.#statements[place.statement - 1]
    if (mode === 'server') return line?.commits ? [{ mode, ...place }] : []
    if (mode !== 'error') return [{ mode, ...place }]
    const { errors = DEFAULT_CODES } = this.#options
    return errors
      .filter((code) => endsConnection(code) || (place.side === 'before' && !line?.rollsBack))
      .map((code) => ({ mode, ...place, code }))
  }

  /** The recovery after this crash crashes too, at each of its points. */
  async #crashRecovery(fault: Fault): Promise<void> {
    for (let statement = 1; ; statement++)
      for (const side of SIDES) {
        const record = await this.#try({ ...fault, again: { side, statement } })
        if (record.isReachedAgain || record.failure) this.#records.push(record)
        if (!record.isReachedAgain) return
      }
  }

  /** Some points with a real process, and the same within this one. */
  async #runProcesses(): Promise<void> {
    const { bound, seed = 1 } = this.#options
    const draw = seededRandom(seed)
    const all = this.#statements.flatMap((_, i) =>
      SIDES.flatMap((side) =>
        (['SIGKILL', 'SIGSTOP'] as const).map((signal) => ({
          mode: 'process' as const,
          side,
          statement: i + 1,
          signal,
        })),
      ),
    )
    const chosen = all
      .map((fault) => ({ fault, order: draw() }))
      .sort((a, b) => a.order - b.order)
      .slice(0, bound?.processPoints ?? DEFAULT_PROCESS_POINTS)
      .map(({ fault }) => fault)
      .sort((a, b) => a.statement - b.statement)
    for (const fault of chosen) {
      const record = await this.#try(fault)
      if (!record.isReached) throw childNotThere(record)
      this.#records.push(record)
      const twin = await this.#twinOf(fault)
      this.#agreements.set(encodeFault(fault), signRecord(twin) === signRecord(record))
    }
  }

  async #twinOf({ signal, side, statement }: Fault): Promise<RunRecord> {
    const fault: Fault = { mode: signal === 'SIGKILL' ? 'crash' : 'zombie', side, statement }
    const replay = encodeFault(fault)
    const known = this.#records.find((record) => encodeFault(record.fault) === replay)
    if (known) return known
    // What goes wrong here has gone wrong, wherever it was meant to be tried.
    const record = await this.#try(fault)
    this.#records.push(record)
    return record
  }
}

const sentNothing = (): ExplorationError =>
  new ExplorationError(
    '`run` ended without sending a statement that could be seen, so there is no point at which to harm it. Is an `await` or a `return` missing? ' +
      'Use the `db` that it is given, or pass the pool that the code uses as `pool`; drivers other than pg connect to `db.url`.',
    'outside',
    'run',
  )

/** A process that never came to its point was not put to the test. */
function childNotThere({ fault, story }: RunRecord): ExplorationError {
  const sent = statementsOfRun(story).length
  const ended = story.find((line) => line.kind === 'event' && line.ends === 'run')
  return new ExplorationError(
    `The child process did not come to ${encodeFault(fault)}: it sent ${count(sent, 'statement')} to the url that \`child\` was given${ended?.kind === 'event' ? `, and ${ended.text}` : ''}. ` +
      'It must run the same program as `run`, and connect to that url. Raise patienceMs if it only takes its time to start.',
    'outside',
    'run',
  )
}

/** What happened, in words that are the same wherever it happens. */
function signRecord({ story, failure, recoveries }: RunRecord): string {
  const lines = story.map((line) =>
    line.kind === 'event' ? '' : `${line.who} ${line.number}: ${line.text} -> ${signEffect(line)}`,
  )
  return JSON.stringify([lines.filter(Boolean), failure?.kind, recoveries])
}
