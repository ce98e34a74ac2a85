import { ExplorationError } from '../../../errors.js'
import { patienceOf } from '../../patience.js'
import type { ExploreOptions } from '../options.js'
import { type Choose, ScheduleRun } from '../schedule/schedule-run.js'
import { actorOf, type Trace } from '../schedule/trace.js'
import type { Stage } from '../stage/stage.js'
import { Cautions } from './cautions.js'
import { type Failed, failureOf } from './failure.js'

const DEFAULT_STEPS = 500
const USUAL_PATIENCE_MS = 5_000

export interface TrialOptions {
  /** Not one that was run before. */
  readonly isNew?: boolean
  /** Asked afterwards: another that was or will be run stands for it. */
  readonly isRepeat?: () => boolean
  /** Find words for what was waited for. */
  readonly describes?: boolean
}

/** Hears of each schedule before it is judged; `repeats`: another stands for it. */
export type OnTrace = (trace: Trace, repeats: boolean) => void

/** Runs schedules and judges them, and remembers the first that went wrong. */
export class Trials {
  /** Schedules that differ. */
  schedules = 0
  /** Schedules that turned out to be others in another order of steps that commute. */
  repeats = 0
  mostSteps = 0
  /** Connections that were seen to act. */
  readonly units = new Set<string>()
  found: Failed | undefined
  /** The same among those for which others stand. */
  foundInRepeat: Failed | undefined
  readonly cautions = new Cautions()
  readonly #stage: Stage
  readonly #options: ExploreOptions
  readonly #onTrace: OnTrace | undefined

  constructor(stage: Stage, options: ExploreOptions, onTrace?: OnTrace) {
    this.#onTrace = onTrace
    this.#stage = stage
    this.#options = options
  }

  async run(
    choose: Choose,
    { isNew = true, isRepeat, describes = false }: TrialOptions = {},
  ): Promise<Trace> {
    const { bound } = this.#options
    const patienceMs = patienceOf(this.#options.patienceMs, USUAL_PATIENCE_MS)
    await this.#stage.begin()
    const maxSteps = bound?.steps ?? DEFAULT_STEPS
    const trace = await new ScheduleRun({ stage: this.#stage, choose, maxSteps, patienceMs, describes }).run()
    this.#stage.end()
    this.cautions.read(trace)
    const repeats = isRepeat?.() === true
    this.#onTrace?.(trace, repeats)
    for (const { unit } of trace.steps) this.units.add(unit)
    this.mostSteps = Math.max(this.mostSteps, trace.steps.length)
    if (isNew && this.schedules === 0) this.#checkEachActs(trace)
    const failure = await failureOf(trace, this.#stage, this.#options)
    if (isNew && repeats) this.repeats++
    else if (isNew) this.schedules++
    // The one that stands for it goes wrong too, and tells it better.
    if (failure && repeats) this.foundInRepeat ??= { trace, failure }
    else if (failure) this.found ??= { trace, failure }
    return trace
  }

  /** From now on tables are as new at the start of each schedule. @returns they were not before */
  tidyUp(): boolean {
    this.#stage.end() // it may have been left within a schedule
    return this.#stage.tidyUp()
  }

  /** An actor that is never seen is not explored, whatever the verdict would say. */
  #checkEachActs({ steps, outcomes }: Trace): void {
    const seen = new Set(steps.map(({ unit }) => actorOf(unit)))
    const unseen = this.#stage.actors.find(
      ({ name }) => !seen.has(name) && outcomes[name]?.status === 'fulfilled',
    )
    if (!unseen) return
    throw new ExplorationError(
      `${unseen.name} ended without sending a statement that the explorer could see. ` +
        'Use the handle that the function is given, or pass the pool that the code uses as `pool`; drivers other than pg connect to `db.url`.',
      'outside',
      unseen.name,
    )
  }
}

/** As `trace` went up to and with step `upTo`; then whatever comes easiest. */
export const sameChoices =
  ({ steps }: Trace, upTo = steps.length): Choose =>
  (options, done) => {
    const unit = done.length <= upTo ? steps[done.length]?.unit : undefined
    return unit !== undefined && options.includes(unit) ? unit : undefined
  }
