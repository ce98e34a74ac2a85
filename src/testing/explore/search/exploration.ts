import { ExplorationError, ScheduleDivergedError } from '../../../errors.js'
import { callSite } from '../../gate/call-site.js'
import { seededRandom } from '../../seeded-random.js'
import { type ExploreSettings, exploreBounds } from '../options.js'
import type { DependenceRule } from '../reduce/dependence.js'
import { Reduction } from '../reduce/reduction.js'
import { checkOf, decodeReplay } from '../report/replay.js'
import type { ExploreReport, RandomPart } from '../report/report.js'
import { showRace } from '../report/show-race.js'
import { summarize } from '../report/summarize.js'
import type { PendingStep } from '../schedule/pending-step.js'
import { actorOf, isServerOrdered, stepSignature, type Trace, type TraceStep } from '../schedule/trace.js'
import type { TestSession } from '../session/test-session.js'
import { ExhaustiveSearch, type SearchResult } from './exhaustive-search.js'
import type { FailedSchedule } from './failure.js'
import { detectionProbability, RACE_DEPTH, randomPriorities } from './random-priorities.js'
import { type OnTrace, repeatChoices, ScheduleChecker } from './schedule-checker.js'
import { MAX_WAKE_TRIES } from './wake-orders.js'

/** Hooks through which the tests of the explorer change and observe an exploration. */
export interface TestHooks {
  /** Replaces the rules that say which steps are dependent. */
  readonly rules?: readonly DependenceRule[]
  readonly onTrace?: OnTrace
  /** True: the notes name each function of Dibs that has no yield point. */
  readonly namesFunctionsOfDibs?: boolean
}

type Settings = ExploreSettings & { readonly identity: string }

/** Runs one call of `explore`: a search, a replay or one named schedule. Then makes the report. */
export class Exploration {
  readonly #testSession: TestSession
  readonly #settings: Settings
  readonly #bound: ReturnType<typeof exploreBounds.read>
  readonly #actors: readonly string[]
  readonly #checker: ScheduleChecker
  readonly #startedAt = performance.now()
  readonly #notes = new Set<string>()
  readonly #reduction: Reduction
  readonly #namesFunctionsOfDibs: boolean

  constructor(
    testSession: TestSession,
    settings: Settings,
    { rules, onTrace, namesFunctionsOfDibs = false }: TestHooks,
  ) {
    this.#testSession = testSession
    this.#namesFunctionsOfDibs = namesFunctionsOfDibs
    this.#reduction = new Reduction(testSession.catalog, testSession.observedSettings, rules)
    this.#settings = settings
    this.#bound = exploreBounds.read(settings.bound)
    this.#actors = Object.keys(settings.actors)
    this.#checker = new ScheduleChecker(testSession, settings, this.#bound.steps, onTrace)
  }

  async run(): Promise<ExploreReport> {
    const { replay, schedule, everyOrder } = this.#settings
    if (replay !== undefined) {
      await this.#replay(replay)
      return this.#report('replay')
    }
    if (schedule) {
      await this.#runNamed(schedule)
      return this.#report('schedule')
    }
    const { preemptions = Number.POSITIVE_INFINITY, schedules } = this.#bound
    const bound = { preemptions, schedules, everyOrder }
    const search = new ExhaustiveSearch(this.#checker, this.#reduction, bound, this.#notes)
    const result = await search.run()
    const random = result.isComplete || this.#checker.firstFailure ? undefined : await this.#runRandom()
    return this.#report('search', result, random)
  }

  async #runRandom(): Promise<RandomPart | undefined> {
    const { seed } = this.#settings
    const random = seededRandom(seed)
    const steps = this.#checker.longest
    let done = 0
    for (; done < this.#bound.random && !this.#checker.firstFailure; done++)
      await this.#checker.run(randomPriorities(steps, random))
    if (done === 0) return undefined
    return {
      schedules: done,
      seed,
      depth: RACE_DEPTH,
      probability: detectionProbability(this.#checker.units.size, steps, done),
    }
  }

  /** Runs the one schedule of the option `schedule`. */
  async #runNamed(schedule: readonly string[]): Promise<void> {
    const { steps } = await this.#checker.run((options, steps) => {
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
      const trace = await this.#checker.run(
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
      if (!difference.isByServer || tries >= MAX_WAKE_TRIES) throw difference.error
      this.#checker.firstFailure = undefined
    }
  }

  async #report(
    mode: ExploreReport['mode'],
    result?: SearchResult,
    random?: RandomPart,
  ): Promise<ExploreReport> {
    const { firstFailure, schedules, repeats, longest } = this.#checker
    const detailed = firstFailure && (await this.#runAgain(firstFailure))
    this.#addNotes()
    const { catalog, isolation } = this.#testSession
    const facts = {
      verdict: firstFailure ? ('race' as const) : ('passed' as const),
      mode,
      schedules,
      reduction: { off: this.#whyUnreduced(), repeats, widened: this.#reduction.widened },
      isComplete: !firstFailure && result?.isComplete === true,
      isExhaustive:
        !firstFailure &&
        result?.isExhaustive === true &&
        this.#reduction.notes.length === 0 &&
        !this.#testSession.actors.some(({ lateCall }) => lateCall),
      preemptions: firstFailure ? null : (result?.preemptions ?? null),
      ...(random ? { random } : {}),
      actors: this.#actors,
      steps: longest,
      isolation,
      tookMs: Math.round(performance.now() - this.#startedAt),
      notes: [...this.#notes],
    }
    if (!detailed) return { ...facts, summary: summarize(facts) }
    const footprintOf = (pending: PendingStep) => this.#reduction.footprintOf(pending)
    const race = showRace(
      detailed,
      { ...facts, identity: this.#settings.identity },
      { footprintOf, schemaInfo: catalog, isolation },
    )
    return { ...facts, summary: race.printout.split('\n')[0] as string, race }
  }

  #whyUnreduced(): string | null {
    const { replay, schedule, everyOrder } = this.#settings
    if (replay !== undefined || schedule) return 'the options name one schedule'
    if (everyOrder) return 'the option everyOrder is set'
    if (this.#bound.preemptions !== undefined) return 'there is a bound of preemptions'
    return this.#reduction.disabledReason ?? null
  }

  #addNotes(): void {
    const { catalog, actorSet, actors } = this.#testSession
    const notes = [...this.#reduction.notes]
    if (!this.#settings.invariant)
      notes.push('No invariant was given: only actors that fail were looked for.')
    notes.push(...this.#checker.gaps.notes)
    for (const { name, lateCall } of actors)
      if (lateCall)
        notes.push(
          `${name} did not wait for what it began, at ${callSite(lateCall) ?? 'a place unknown'}: that came after the schedule was over, and was not run.`,
        )
    for (const schema of catalog.dibsSchemas)
      notes.push(`Functions of Dibs in schema ${schema} run as one step each.`)
    const ofDibs = this.#namesFunctionsOfDibs ? catalog.atomicFunctionsOfDibs : []
    for (const name of [...catalog.atomicFunctions, ...ofDibs])
      notes.push(`${name} runs as one step: it has no yield point (perform dibs_point('name')).`)
    if (actorSet.keptClients > 0)
      notes.push('An actor ended without giving back a client that it took from its pool (client.release()).')
    for (const note of notes) this.#notes.add(note)
  }

  /** Runs a failed schedule once more, to describe what units wait for, and to check that it fails again. */
  async #runAgain(found: FailedSchedule): Promise<FailedSchedule> {
    const signature = ({ steps }: Trace): string => steps.map(stepSignature).join('\n')
    this.#checker.firstFailure = undefined
    try {
      const trace = await this.#checker.run(repeatChoices(found.trace), {
        isNew: false,
        describesWaits: true,
      })
      const again = this.#checker.firstFailure as FailedSchedule | undefined
      if (again && signature(trace) === signature(found.trace)) return { ...again, turnedAt: found.turnedAt }
    } catch {
      // Keep the failure that was found.
    }
    this.#notes.add(
      'Repeated with the same order of steps, the failed schedule went another way. It depends on more than that order.',
    )
    return found
  }
}

/** The first step at which a replay differs from the original. */
interface Difference {
  readonly error: ScheduleDivergedError
  /** True if the server may have caused the difference, so that another try may match the original. */
  readonly isByServer: boolean
}

function findDifference({ steps }: Trace, checks: readonly string[]): Difference | undefined {
  const found = steps.findIndex((step, i) => checkOf(step) !== checks[i]) // guard: explorer.replay-check
  const at = found < 0 ? steps.length : found
  if (at === checks.length && at === steps.length) return undefined
  const step: TraceStep | undefined = steps[at]
  const before = at < checks.length ? `another step (${checks[at]})` : 'the end'
  return {
    error: new ScheduleDivergedError(at + 1, before, step ? stepSignature(step) : 'the end'),
    isByServer: steps.slice(0, at + 1).some(isServerOrdered),
  }
}
