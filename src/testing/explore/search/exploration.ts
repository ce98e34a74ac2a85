import { ExplorationError, ScheduleDivergedError } from '../../../errors.js'
import { callSite } from '../../gate/call-site.js'
import { identityOf } from '../../identity-of.js'
import { seededRandom } from '../../seeded-random.js'
import type { ExploreOptions } from '../options.js'
import type { DependentPair } from '../reduce/dependence.js'
import { Reduction } from '../reduce/reduction.js'
import { checkOf, decodeReplay } from '../report/replay.js'
import type { ExploreReport, RandomPart } from '../report/report.js'
import { showRace } from '../report/show-race.js'
import { summarize } from '../report/summarize.js'
import type { PendingStep } from '../schedule/pending-step.js'
import { actorOf, isContested, signStep, type Trace, type TraceStep } from '../schedule/trace.js'
import type { Stage } from '../stage/stage.js'
import type { Failed } from './failure.js'
import { chanceOf, DEPTH, randomOrder } from './random-order.js'
import { type Reached, SearchAll, WAKE_TRIES } from './search-all.js'
import { type OnTrace, sameChoices, Trials } from './trials.js'

const DEFAULT_SCHEDULES = 2_000
const DEFAULT_RANDOM = 250

/** What tests of the explorer want to change and to see. */
export interface Insight {
  /** Which steps do not commute. */
  readonly pairs?: readonly DependentPair[]
  readonly onTrace?: OnTrace
  /** Notes name each function of Dibs that has no yield point. */
  readonly namesFunctionsOfDibs?: boolean
}

/** One call of `explore`: which schedules are run, and what they say together. */
export class Exploration {
  readonly #stage: Stage
  readonly #options: ExploreOptions
  readonly #actors: readonly string[]
  readonly #trials: Trials
  readonly #startedAt = performance.now()
  readonly #notes = new Set<string>()
  readonly #reduction: Reduction
  readonly #namesFunctionsOfDibs: boolean

  constructor(
    stage: Stage,
    options: ExploreOptions,
    { pairs, onTrace, namesFunctionsOfDibs = false }: Insight,
  ) {
    this.#stage = stage
    this.#namesFunctionsOfDibs = namesFunctionsOfDibs
    this.#reduction = new Reduction(stage.catalog, stage.sessions, pairs)
    this.#options = options
    this.#actors = Object.keys(options.actors)
    this.#trials = new Trials(stage, options, onTrace)
  }

  async run(): Promise<ExploreReport> {
    const { replay, schedule, bound = {}, everyOrder = false } = this.#options
    if (replay !== undefined) {
      await this.#replay(replay)
      return this.#report('replay')
    }
    if (schedule) {
      await this.#runNamed(schedule)
      return this.#report('schedule')
    }
    const { preemptions = Number.POSITIVE_INFINITY, schedules = DEFAULT_SCHEDULES } = bound
    const search = new SearchAll(
      this.#trials,
      this.#reduction,
      { preemptions, schedules, everyOrder },
      this.#notes,
    )
    const reached = await search.run()
    const isComplete = reached.isComplete
    const random = isComplete || this.#trials.found ? undefined : await this.#runRandom()
    return this.#report('search', reached, random)
  }

  async #runRandom(): Promise<RandomPart | undefined> {
    const { seed = 1, bound } = this.#options
    const runs = bound?.random ?? DEFAULT_RANDOM
    const random = seededRandom(seed)
    const steps = this.#trials.mostSteps
    let done = 0
    for (; done < runs && !this.#trials.found; done++) await this.#trials.run(randomOrder(steps, random))
    if (done === 0) return undefined
    return {
      schedules: done,
      seed,
      depth: DEPTH,
      probability: chanceOf(this.#trials.units.size, steps, done),
    }
  }

  async #runNamed(schedule: readonly string[]): Promise<void> {
    const { steps } = await this.#trials.run((options, steps) => {
      const wanted = schedule[steps.length]
      if (wanted === undefined || options.includes(wanted)) return wanted
      throw new ExplorationError(
        `Step ${steps.length + 1} of the schedule is ${wanted}'s, who cannot go on there: only ${options.join(' and ')} can.`,
        'schedule',
        actorOf(wanted),
      )
    })
    if (steps.length < schedule.length)
      throw new ExplorationError(
        `The schedule names ${schedule.length} steps, and all actors have ended after ${steps.length}.`,
        'schedule',
        actorOf(schedule[steps.length] as string),
      )
  }

  async #replay(text: string): Promise<void> {
    const { units, checks } = decodeReplay(text, this.#actors)
    for (let tries = 0; ; tries++) {
      const trace = await this.#trials.run(
        (options, steps) => {
          const wanted = units[steps.length]
          if (wanted === undefined || options.includes(wanted)) return wanted
          throw new ScheduleDivergedError(
            steps.length + 1,
            `${wanted} could go on`,
            `only ${options.join(', ')} can go on`,
          )
        },
        { isNew: tries === 0 },
      )
      const difference = findDifference(trace, checks)
      if (!difference) return
      if (!difference.isContested || tries >= WAKE_TRIES) throw difference.error
      this.#trials.found = undefined
    }
  }

  async #report(mode: ExploreReport['mode'], reached?: Reached, random?: RandomPart): Promise<ExploreReport> {
    const { found, schedules } = this.#trials
    const detailed = found && (await this.#again(found))
    this.#noteWhatWasSeen()
    const facts = {
      verdict: found ? ('race' as const) : ('passed' as const),
      mode,
      schedules,
      reduction: {
        off: this.#whyUnreduced(),
        repeats: this.#trials.repeats,
        widened: this.#reduction.widened,
      },
      isComplete: !found && reached?.isComplete === true,
      isExhaustive:
        !found &&
        reached?.isExhaustive === true &&
        this.#reduction.notes.length === 0 &&
        !this.#stage.actors.some(({ late }) => late),
      preemptions: found ? null : (reached?.preemptions ?? null),
      ...(random ? { random } : {}),
      actors: this.#actors,
      steps: this.#trials.mostSteps,
      isolation: this.#stage.isolation,
      tookMs: Math.round(performance.now() - this.#startedAt),
      notes: [...this.#notes],
    }
    if (!detailed) return { ...facts, summary: summarize(facts) }
    const knowledge = {
      footprintOf: (pending: PendingStep) => this.#reduction.footprintOf(pending),
      lore: this.#stage.catalog,
      isolation: this.#stage.isolation,
    }
    const race = showRace(detailed, { ...facts, identity: identityOf(this.#options) }, knowledge)
    return { ...facts, summary: race.printout.split('\n')[0] as string, race }
  }

  #whyUnreduced(): string | null {
    const { replay, schedule, everyOrder, bound } = this.#options
    if (replay !== undefined || schedule) return 'one schedule was asked for'
    if (everyOrder) return 'every order was asked for'
    if (bound?.preemptions !== undefined) return 'there is a bound of preemptions'
    return this.#reduction.off ?? null
  }

  #noteWhatWasSeen(): void {
    const { catalog, cast } = this.#stage
    for (const note of this.#reduction.notes) this.#notes.add(note)
    if (!this.#options.invariant)
      this.#notes.add('No invariant was given: only actors that fail were looked for.')
    for (const note of this.#trials.cautions.notes) this.#notes.add(note)
    for (const { name, late } of this.#stage.actors)
      if (late)
        this.#notes.add(
          `${name} did not wait for what it began, at ${callSite(late) ?? 'a place unknown'}: that came after the schedule was over, and was not run.`,
        )
    for (const schema of catalog.dibsSchemas)
      this.#notes.add(`Functions of Dibs in schema ${schema} run as one step each.`)
    const ofDibs = this.#namesFunctionsOfDibs ? catalog.atomicFunctionsOfDibs : []
    for (const name of [...catalog.atomicFunctions, ...ofDibs])
      this.#notes.add(`${name} runs as one step: it has no yield point (perform dibs_point('name')).`)
    if (cast.keptClients > 0)
      this.#notes.add(
        'An actor ended without giving back a client that it took from its pool (client.release()).',
      )
  }

  /** The same once more, with words for what was waited for: and a race that is real shows itself again. */
  async #again(found: Failed): Promise<Failed> {
    const sign = ({ steps }: Trace): string => steps.map(signStep).join('\n')
    this.#trials.found = undefined
    try {
      const trace = await this.#trials.run(sameChoices(found.trace), { isNew: false, describes: true })
      const again = this.#trials.found as Failed | undefined
      if (again && sign(trace) === sign(found.trace)) return { ...again, turnedAt: found.turnedAt }
    } catch {
      // What was found stands.
    }
    this.#notes.add('Run a second time, this schedule went another way: something beside the order decides.')
    return found
  }
}

interface Difference {
  readonly error: ScheduleDivergedError
  /** The server alone decided it, so that it may go as before another time. */
  readonly isContested: boolean
}

function findDifference({ steps }: Trace, checks: readonly string[]): Difference | undefined {
  const found = steps.findIndex((step, i) => checkOf(step) !== checks[i])
  const at = found < 0 ? steps.length : found
  if (at === checks.length && at === steps.length) return undefined
  const step: TraceStep | undefined = steps[at]
  const before = at < checks.length ? `another step (${checks[at]})` : 'the end'
  return {
    error: new ScheduleDivergedError(at + 1, before, step ? signStep(step) : 'the end'),
    isContested: steps.slice(0, at + 1).some(isContested),
  }
}
