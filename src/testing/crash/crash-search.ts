import { ExplorationError, InvalidInputError } from '../../errors.js'
import { count } from '../count.js'
import type { TestSession } from '../explore/session/test-session.js'
import { seededRandom } from '../seeded-random.js'
import { CrashRun } from './crash-run.js'
import { CrashableServer } from './crashable-server.js'
import { type CrashMode, DEFAULT_MODES, decodeFault, encodeFault, type Fault, type Place } from './fault.js'
import { DEFAULT_CODES, endsConnection } from './injected-errors.js'
import type { CrashLoopOptions } from './options.js'
import { signEffect } from './report/recovery-path-names.js'
import { RunContext } from './run-context.js'
import type { RunRecord } from './run-record.js'
import { type StatementLine, type StoryLine, statementsOfRun } from './story.js'

const DEFAULT_PROCESS_POINTS = 10
const SIDES = ['before', 'after'] as const

/** The results of all runs. */
export interface Findings {
  /** The first record is the run without a fault. */
  readonly records: readonly RunRecord[]
  /** The story of `recover` on fresh data. */
  readonly alone: readonly StoryLine[]
  /** For each point of mode `process`: whether the same fault within this process has the same result. */
  readonly agreements: ReadonlyMap<string, boolean>
  /** The points of the run without a fault that a later run did not reach. */
  readonly missed: readonly string[]
  readonly runs: number
  readonly tookMs: number
}

/** Runs the program with each fault at each point. */
export class CrashSearch {
  readonly #testSession: TestSession
  readonly #options: CrashLoopOptions
  readonly #afterRun: () => void
  readonly #records: RunRecord[] = []
  readonly #agreements = new Map<string, boolean>()
  readonly #missed: string[] = []
  #server: CrashableServer | undefined
  /** The statements of the run without a fault. */
  #statements: readonly StatementLine[] = []
  #runs = 0

  /** @param afterRun called after each run */
  constructor(testSession: TestSession, options: CrashLoopOptions, afterRun: () => void) {
    this.#testSession = testSession
    this.#afterRun = afterRun
    this.#options = options
  }

  async run(): Promise<Findings> {
    const { replay } = this.#options
    const modes = [...new Set(this.#options.modes ?? DEFAULT_MODES)]
    const startedAt = performance.now()
    const replayedFault = replay === undefined ? undefined : decodeFault(replay)
    if (replay === undefined ? modes.includes('server') : replayedFault?.mode === 'server')
      this.#server = await CrashableServer.find(this.#testSession)
    const base = await this.#try(undefined)
    this.#records.push(base)
    this.#statements = statementsOfRun(base.story)
    if (this.#statements.length === 0 && base.run === 'fulfilled') throw sentNothing()
    let alone: readonly StoryLine[] = []
    if (!base.failure) {
      alone = await this.#newRun(undefined).recoverAlone()
      this.#runs++
      if (replayedFault) await this.#replay(replayedFault)
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
    return new CrashRun(new RunContext(this.#testSession, this.#options, fault), this.#server)
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
    // Until a run ends before its point.
    for (let statement = 1; ; statement++) {
      const faults = SIDES.flatMap((side) => this.#faultsAt(mode, { side, statement }))
      if (faults.length === 0 && statement > this.#statements.length) return
      for (const fault of faults) {
        const record = await this.#try(fault)
        // A run that fails before its point has failed too.
        if (record.isReached || record.failure) this.#records.push(record)
        if (record.isReached) continue
        if (statement > this.#statements.length) return
        this.#missed.push(encodeFault(fault))
      }
    }
  }

  /** Crashes the recovery too, after each single crash. */
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

  /** Crashes the recovery after this crash, at each of its points. */
  async #crashRecovery(fault: Fault): Promise<void> {
    for (let statement = 1; ; statement++)
      for (const side of SIDES) {
        const record = await this.#try({ ...fault, again: { side, statement } })
        if (record.isReachedAgain || record.failure) this.#records.push(record)
        if (!record.isReachedAgain) return
      }
  }

  /** Runs some points with a real process, and the same points within this process. */
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
      const inProcess = await this.#tryInProcess(fault)
      this.#agreements.set(encodeFault(fault), signRecord(inProcess) === signRecord(record))
    }
  }

  /** Returns the record of the same fault within this process. */
  async #tryInProcess({ signal, side, statement }: Fault): Promise<RunRecord> {
    const fault: Fault = { mode: signal === 'SIGKILL' ? 'crash' : 'zombie', side, statement }
    const replay = encodeFault(fault)
    const known = this.#records.find((record) => encodeFault(record.fault) === replay)
    if (known) return known
    // The run was made for a comparison. A failure here counts all the same.
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

/** The child process ended or hung before its point, so its point was not tested. */
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

/** A string that is equal for equal results, in a real process and within this one. */
function signRecord({ story, failure, recoveries }: RunRecord): string {
  const lines = story.map((line) =>
    line.kind === 'event' ? '' : `${line.who} ${line.number}: ${line.text} -> ${signEffect(line)}`,
  )
  return JSON.stringify([lines.filter(Boolean), failure?.kind, recoveries])
}
