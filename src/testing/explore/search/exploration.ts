import { ExplorationError, ScheduleDivergedError } from '../../../errors.js'
import { seededRandom } from '../../seeded-random.js'
import type { ExploreOptions } from '../options.js'
import { checkOf, decodeReplay } from '../report/replay.js'
import type { ExploreReport, RandomPart } from '../report/report.js'
import { showRace } from '../report/show-race.js'
import { ONE_ASKED_FOR, summarize } from '../report/summarize.js'
import { type Choose, ScheduleRun } from '../schedule/schedule-run.js'
import { actorOf, isContested, signStep, type Trace, type TraceStep } from '../schedule/trace.js'
import type { Stage } from '../stage/stage.js'
import { type Failure, failureOf } from './failure.js'
import { type Branch, BranchFollower, Frontier } from './frontier.js'
import { chanceOf, DEPTH, randomOrder } from './random-order.js'

const DEFAULT_SCHEDULES = 2_000
const DEFAULT_RANDOM = 250
const DEFAULT_STEPS = 500
const DEFAULT_PATIENCE_MS = 5_000
/** How often a schedule is run again to see the server wake those who waited in another order … */
const WAKE_TRIES = 5
/** … and how often in vain for the same statements, before it is taken to have one order only. */
const VAIN_TRIES = 25

interface Failed {
  readonly trace: Trace
  readonly failure: Failure
}

interface Ran {
  readonly trace: Trace
  readonly failure: Failure | undefined
}

/** One call of `explore`: which schedules are run, and what they say together. */
export class Exploration {
  readonly #stage: Stage
  readonly #options: ExploreOptions
  readonly #startedAt = performance.now()
  readonly #notes = new Set<string>()
  /** By the statements of a contest: how often the other order was sought in vain. */
  readonly #vainTries = new Map<string, number>()
  /** Orders of the server's own that were met beside the one that a schedule was first seen with. */
  readonly #met = new Set<string>()
  /** Schedules that differ. */
  #schedules = 0
  #mostSteps = 0
  #found: Failed | undefined

  constructor(stage: Stage, options: ExploreOptions) {
    this.#stage = stage
    this.#options = options
  }

  async run(): Promise<ExploreReport> {
    const { replay, schedule } = this.#options
    if (replay !== undefined) return this.#replay(replay)
    if (schedule) return this.#named(schedule)
    return this.#search()
  }

  async #search(): Promise<ExploreReport> {
    const { preemptions = Number.POSITIVE_INFINITY, schedules = DEFAULT_SCHEDULES } =
      this.#options.bound ?? {}
    const frontier = new Frontier(preemptions)
    for (let branch = frontier.next(); branch && this.#schedules < schedules; ) {
      await this.#follow(branch, frontier)
      if (this.#found) return this.#report(false, null)
      // A branch taken from the frontier must be run, so look before.
      branch = this.#schedules < schedules ? frontier.next() : undefined
    }
    const isDone = frontier.size === 0
    if (isDone) return this.#report(!frontier.isCut, frontier.isCut ? preemptions : null)
    const reach = frontier.level > 0 ? frontier.level - 1 : null
    const random = await this.#random()
    return this.#report(false, reach, random)
  }

  /** Runs a branch, and again while the server wakes those who waited in another order than the branch stands on. */
  async #follow(branch: Branch, frontier: Frontier): Promise<void> {
    for (let tries = 0; ; tries++) {
      const follower = new BranchFollower(branch)
      const { trace } = await this.#runOnce(follower.choose, { isNew: tries === 0 })
      if (this.#found) return
      const from = follower.divergedAt
      if (from === undefined) {
        const start = branch.parent ? branch.at + 1 : 0
        frontier.expand(trace, start)
        return this.#seekOtherWakes(trace, start, frontier)
      }
      this.#meet(trace, from, frontier)
      if (tries >= WAKE_TRIES) {
        this.#notes.add(wakeNote(trace.steps[from] as TraceStep))
        return
      }
    }
  }

  /** The server has let those who waited go in an order that may be new: what could follow from there is still to be run. */
  #meet(trace: Trace, at: number, frontier: Frontier): void {
    const path = trace.steps
      .slice(0, at + 1)
      .map((step) => (isContested(step) ? signStep(step) : step.unit))
      .join('\n')
    if (this.#met.has(path)) return
    this.#met.add(path)
    this.#schedules++
    frontier.expand(trace, at + 1)
  }

  /** Several woken by one step: runs the same choices again, to meet the order that was not seen. */
  async #seekOtherWakes(trace: Trace, start: number, frontier: Frontier): Promise<void> {
    for (const [at, step] of trace.steps.entries()) {
      if (at < start || !isContested(step)) continue
      const other = await this.#otherWake(trace, at)
      if (this.#found) return
      if (other) this.#meet(other, at, frontier)
      else this.#notes.add(wakeNote(step))
    }
  }

  async #otherWake(trace: Trace, at: number): Promise<Trace | undefined> {
    const step = trace.steps[at] as TraceStep
    const contest = contestOf(trace, at)
    for (let tries = 0; tries < WAKE_TRIES; tries++) {
      const vain = this.#vainTries.get(contest) ?? 0
      if (vain >= VAIN_TRIES) return undefined
      const { trace: again } = await this.#runOnce(sameChoices(trace, at), { isNew: false })
      const now = again.steps[at]
      if (this.#found || (now && signStep(now) !== signStep(step))) {
        // It does happen, so it is sought every time.
        this.#vainTries.set(contest, Number.NEGATIVE_INFINITY)
        return again
      }
      this.#vainTries.set(contest, vain + 1)
    }
    return undefined
  }

  async #random(): Promise<RandomPart | undefined> {
    const { seed = 1, bound, actors } = this.#options
    const runs = bound?.random ?? DEFAULT_RANDOM
    const names = Object.keys(actors)
    const random = seededRandom(seed)
    const steps = this.#mostSteps
    let done = 0
    while (done < runs && !this.#found) {
      await this.#runOnce(randomOrder(names, steps, random))
      done++
    }
    if (done === 0) return undefined
    return { schedules: done, seed, depth: DEPTH, probability: chanceOf(names.length, steps, done) }
  }

  async #named(schedule: readonly string[]): Promise<ExploreReport> {
    await this.#runOnce((options, steps) => {
      const wanted = schedule[steps.length]
      if (wanted === undefined || options.includes(wanted)) return wanted
      throw new ExplorationError(
        `Step ${steps.length + 1} of the schedule is ${wanted}'s, who cannot go on there: only ${options.join(' and ')} can.`,
        'schedule',
        actorOf(wanted),
      )
    })
    return this.#report(false, ONE_ASKED_FOR)
  }

  async #replay(text: string): Promise<ExploreReport> {
    const { units, checks } = decodeReplay(text, Object.keys(this.#options.actors))
    for (let tries = 0; ; tries++) {
      const { trace } = await this.#runOnce((options, steps) => {
        const wanted = units[steps.length]
        if (wanted === undefined || options.includes(wanted)) return wanted
        throw new ScheduleDivergedError(
          steps.length + 1,
          `${wanted} could go on`,
          `only ${options.join(', ')} can go on`,
        )
      })
      const different = trace.steps.findIndex((step, i) => checkOf(step) !== checks[i])
      if (different < 0 && trace.steps.length === checks.length) break
      const step = trace.steps[different < 0 ? trace.steps.length - 1 : different]
      if (step && isContested(step) && tries < WAKE_TRIES) {
        this.#found = undefined
        continue
      }
      throw new ScheduleDivergedError(
        different < 0 ? trace.steps.length + 1 : different + 1,
        different < 0 ? 'one step more' : `another step (${checks[different] ?? 'none'})`,
        step ? signStep(step) : 'nothing',
      )
    }
    return this.#report(false, ONE_ASKED_FOR)
  }

  async #runOnce(choose: Choose, { isNew = true, describes = false } = {}): Promise<Ran> {
    const { bound, patienceMs = DEFAULT_PATIENCE_MS } = this.#options
    await this.#stage.begin()
    const run = new ScheduleRun({
      stage: this.#stage,
      choose,
      maxSteps: bound?.steps ?? DEFAULT_STEPS,
      patienceMs,
      describes,
    })
    const trace = await run.run()
    this.#stage.end()
    if (isNew) this.#schedules++
    this.#mostSteps = Math.max(this.#mostSteps, trace.steps.length)
    if (this.#schedules === 1 && isNew) this.#checkEachActs(trace)
    const failure = await failureOf(trace, this.#stage, this.#options)
    if (failure) this.#found ??= { trace, failure }
    return { trace, failure }
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
        'Use the handle that the actor is given, or pass the pool that the code uses as `pool`; drivers other than pg connect to `db.url`.',
      'outside',
      unseen.name,
    )
  }

  async #report(
    isExhaustive: boolean,
    preemptions: number | null,
    random?: RandomPart,
  ): Promise<ExploreReport> {
    const found = this.#found
    const schedules = this.#schedules
    const detailed = found && (await this.#again(found))
    if (!this.#options.invariant)
      this.#notes.add('No invariant was given: only actors that fail were looked for.')
    for (const name of this.#stage.catalog.atomicFunctions)
      this.#notes.add(`${name} runs as one step: it has no yield point (perform dibs_point('name')).`)
    if (this.#stage.cast.keptClients > 0)
      this.#notes.add(
        'An actor ended without giving back a client that it took from its pool (client.release()).',
      )
    const facts = {
      verdict: found ? ('race' as const) : ('passed' as const),
      schedules,
      isExhaustive,
      preemptions,
      ...(random ? { random } : {}),
      actors: Object.keys(this.#options.actors),
      steps: this.#mostSteps,
      isolation: this.#stage.isolation,
      seconds: (performance.now() - this.#startedAt) / 1000,
      notes: [...this.#notes],
    }
    if (!found || !detailed) return { ...facts, summary: summarize(facts) }
    const race = showRace(detailed, { ...facts, seed: this.#options.seed })
    return { ...facts, summary: race.printout.split('\n')[0] as string, race }
  }

  /** The same once more, with words for what was waited for: and a race that is real shows itself again. */
  async #again(found: Failed): Promise<Failed> {
    const { trace } = found
    try {
      const again = await this.#runOnce(sameChoices(trace, trace.steps.length), {
        isNew: false,
        describes: true,
      })
      const { failure } = again
      if (failure && again.trace.steps.map(signStep).join() === trace.steps.map(signStep).join())
        return { trace: again.trace, failure }
    } catch {
      // What was found stands.
    }
    this.#notes.add('Run a second time, this schedule went another way: something beside the order decides.')
    return found
  }
}

/** As `trace` went up to and with step `upTo`. */
const sameChoices =
  ({ steps }: Trace, upTo: number): Choose =>
  (options, done) => {
    const unit = done.length <= upTo ? steps[done.length]?.unit : undefined
    return unit !== undefined && options.includes(unit) ? unit : undefined
  }

/** What is the same for every contest of this kind, whoever takes part in it. */
function contestOf({ steps }: Trace, at: number): string {
  const { text, resumed, waiters } = steps[at] as TraceStep
  const statementOf = (unit: string): string =>
    steps.slice(0, at).findLast((step) => step.unit === unit)?.text ?? ''
  return JSON.stringify([text, waiters, resumed.map(({ unit }) => statementOf(unit)).toSorted()])
}

const wakeNote = ({ text, waiters }: TraceStep): string =>
  `${JSON.stringify(text)} frees a lock that ${waiters} wait for; who of them goes first is the server's choice, and it was seen in one order only.`
