import { ExplorationError } from '../../../errors.js'
import { patienceOf } from '../../patience.js'
import type { ExploreOptions } from '../options.js'
import { type ChooseUnit, ScheduleRun } from '../schedule/schedule-run.js'
import { actorOf, type Trace } from '../schedule/trace.js'
import type { TestSession } from '../session/test-session.js'
import { CoverageGaps } from './coverage-gaps.js'
import { type FailedSchedule, findFailure } from './failure.js'

const DEFAULT_PATIENCE_MS = 5_000

interface CheckRunOptions {
  /** False if the schedule was run before. */
  readonly isNew?: boolean
  /** Called after the run. True if the schedule is redundant: an equivalent one is run elsewhere. */
  readonly isRedundant?: () => boolean
  /** True: describe what units wait for. Costs a query for each wait. */
  readonly describesWaits?: boolean
}

/** Receives each trace before it is judged. `isRedundant`: an equivalent schedule is run elsewhere. */
export type OnTrace = (trace: Trace, isRedundant: boolean) => void

/** Runs schedules, judges each trace, and remembers the first failure. */
export class ScheduleChecker {
  /** How many different schedules were run. */
  schedules = 0
  /** How many further schedules turned out to be redundant. */
  repeats = 0
  /** The most steps that a schedule had. */
  longest = 0
  /** The units that took a step. */
  readonly units = new Set<string>()
  firstFailure: FailedSchedule | undefined
  /** The first failure of a redundant schedule. */
  firstRedundantFailure: FailedSchedule | undefined
  readonly gaps = new CoverageGaps()
  readonly #testSession: TestSession
  readonly #options: ExploreOptions
  readonly #maxSteps: number
  readonly #patienceMs: number
  readonly #onTrace: OnTrace | undefined

  constructor(testSession: TestSession, options: ExploreOptions, maxSteps: number, onTrace?: OnTrace) {
    this.#testSession = testSession
    this.#options = options
    this.#maxSteps = maxSteps
    this.#patienceMs = patienceOf(options.patienceMs, DEFAULT_PATIENCE_MS)
    this.#onTrace = onTrace
  }

  async run(
    choose: ChooseUnit,
    { isNew = true, isRedundant, describesWaits = false }: CheckRunOptions = {},
  ): Promise<Trace> {
    await this.#testSession.beginRun()
    const trace = await new ScheduleRun({
      testSession: this.#testSession,
      choose,
      maxSteps: this.#maxSteps,
      patienceMs: this.#patienceMs,
      describesWaits,
    }).run()
    this.#testSession.endRun()
    this.gaps.observe(trace)
    const redundant = isRedundant?.() === true
    this.#onTrace?.(trace, redundant)
    for (const { unit } of trace.steps) this.units.add(unit)
    this.longest = Math.max(this.longest, trace.steps.length)
    if (isNew && this.schedules === 0) this.#checkEachTakesStep(trace)
    const failure = await findFailure(trace, this.#testSession, this.#options)
    if (isNew && redundant) this.repeats++
    else if (isNew) this.schedules++
    // The equivalent of a redundant schedule fails too, and is simpler.
    if (failure && redundant) this.firstRedundantFailure ??= { trace, failure }
    else if (failure) this.firstFailure ??= { trace, failure }
    return trace
  }

  /** Makes each later schedule start with a vacuum of the tables. @returns false if this was on before, or is impossible */
  vacuumBetweenRuns(): boolean {
    this.#testSession.endRun() // an error may have left a schedule unfinished
    return this.#testSession.vacuumBetweenRuns()
  }

  /** Throws if an actor takes no step, since nothing of it would be explored. */
  #checkEachTakesStep({ steps, outcomes }: Trace): void {
    const withSteps = new Set(steps.map(({ unit }) => actorOf(unit)))
    const withoutStep = this.#testSession.actors.find(
      ({ name }) => !withSteps.has(name) && outcomes[name]?.status === 'fulfilled',
    )
    if (!withoutStep) return
    throw new ExplorationError(
      `${withoutStep.name} ended without sending a statement that the explorer could see. ` +
        'Use the handle that the function is given, or pass the pool that the code uses as `pool`; drivers other than pg connect to `db.url`.',
      'outside',
      withoutStep.name,
    )
  }
}

/** Chooses as in `trace` up to step `upTo`, then by default. */
export const repeatChoices =
  ({ steps }: Trace, upTo = steps.length): ChooseUnit =>
  (options, done) => {
    const unit = done.length <= upTo ? steps[done.length]?.unit : undefined
    return unit !== undefined && options.includes(unit) ? unit : undefined
  }
