import { countOf, type StepResult } from '../../gate/result.js'
import type { PendingStep } from '../schedule/pending-step.js'
import { actorOf, type Moment, type Trace } from '../schedule/trace.js'
import { parseStatements, type Statement } from '../statements/parse-statements.js'
import { areOfOneActor, Course, type Move } from './course.js'
import { areDependent, DEPENDENT_PAIRS, type DependentPair, type Levels, mayWait } from './dependence.js'
import { EMPTY, everything, type Footprint, join, KEY_SHARE, meetAny } from './footprint.js'
import type { Values } from './key-values.js'
import { statementFootprint } from './statement-footprint.js'
import type { Lore } from './statement-reader.js'

/** How actors are connected. */
export interface Sessions {
  /** Isolation levels of those who name none. */
  readonly levels: ReadonlySet<string>
  /** Some have a search_path of their own. */
  readonly hasOtherPath: boolean
  /** What the invariant has asked and nobody has read yet. */
  readonly judged: string[]
}

/** No table has this name. */
const ANY_TABLE = ''

/**
 * Knows which steps commute, so that of all schedules that differ in the order of such steps only, one is run. What it
 * learns on the way may show that it knew too little: then `version` goes up, and the search must start anew.
 */
export class Reduction implements Levels {
  version = 0
  isRepeatable = false
  /** Why every schedule must be run. */
  off: string | undefined
  readonly eager = new Set<string>()
  readonly #disordered = new Set<string>()
  readonly #timed = new Set<string>()
  /** Actors whose times somebody looks at. */
  readonly #clocked = new Set<string>()
  readonly #lore: Lore
  readonly #sessions: Sessions
  readonly #pairs: readonly DependentPair[]
  readonly #footprints = new Map<string, Footprint>()
  /** By the statement: why it was taken to touch everything. */
  readonly #widened = new Map<string, string>()
  /** Statements that read other rows than those they lock, and do not have the lock before. */
  readonly #asides = new Map<string, Move & { readonly text: string }>()
  /** What has waited for a row in vain, as the last of its transaction. */
  readonly #regretted = new Set<Footprint>()
  /** By the unit: what changes something. */
  readonly #writes = new Map<string, Set<Footprint>>()

  constructor(lore: Lore, sessions: Sessions, pairs: readonly DependentPair[] = DEPENDENT_PAIRS) {
    this.#lore = lore
    this.#sessions = sessions
    this.#pairs = pairs
    this.#readSessions()
  }

  get hasTimes(): boolean {
    return this.#timed.size > 0 || this.#disordered.has(ANY_TABLE)
  }

  isTimed(table: string): boolean {
    return this.#timed.has(table) || this.#disordered.has(ANY_TABLE)
  }

  isClocked(unit: string): boolean {
    return this.#clocked.has(actorOf(unit))
  }

  isDisordered(table: string): boolean {
    return this.#disordered.has(table) || this.#disordered.has(ANY_TABLE)
  }

  /** Somebody takes rows in the order in which they lie. */
  get seesOrder(): boolean {
    return [...this.#disordered].some((table) => table !== ANY_TABLE)
  }

  /** What steps cannot show: a statement begins, looks around, and then locks, and all of it is one step. */
  get notes(): readonly string[] {
    const isChanged = (unit: string, { aside }: Footprint): boolean =>
      [...this.#writes].some(
        ([other, footprints]) =>
          !areOfOneActor(unit, other) &&
          [...footprints].some(
            ({ everything, adds, changes }) =>
              everything !== undefined || meetAny(aside, [...adds, ...changes]),
          ),
      )
    const texts = [...this.#asides.values()].filter(({ unit, footprint }) => isChanged(unit, footprint))
    return [...new Set(texts.map(({ text }) => text))].map(
      (text) =>
        `${JSON.stringify(text)} reads other rows than those it locks. What is committed after it has read them and before it has its lock was not tried.`,
    )
  }

  /** What was taken to touch more than it says, and why. */
  get widened(): readonly string[] {
    const tables = [...this.#disordered]
      .filter((table) => table !== ANY_TABLE)
      .map((table) => `${table}: somebody takes its rows in the order in which they happen to lie there`)
    const isStamped = (table: string): boolean =>
      [...this.#footprints.values()].some(({ stamps }) => stamps.has(table))
    const times = [...this.#timed]
      .filter(isStamped)
      .map((table) => `${table}: somebody looks at times that are written into it`)
    const texts = [...this.#widened].map(([text, why]) => `${JSON.stringify(text)}: ${why}`)
    return [...new Set([...texts, ...tables, ...times])]
  }

  /** What it knows is never enough. */
  giveUp(): void {
    this.#turnOff('each schedule showed something new')
  }

  areDependent(a: Move, b: Move, course: Course): boolean {
    return areDependent(a, b, course, this, this.#pairs)
  }

  footprintOf(pending: PendingStep): Footprint {
    const { before, statements, values, isCommit, isWithin, isAlone } = pending
    const texts = statements.map(({ text }) => text)
    const key = JSON.stringify([before, texts, values, isCommit, isWithin, isAlone])
    const known = this.#footprints.get(key)
    if (known) return known
    const footprint = { ...this.#read(pending), text: textOf(pending) }
    this.#footprints.set(key, footprint)
    for (const statement of [...before.flatMap(parseStatements), ...statements])
      this.#readSetting(statement, values)
    for (const table of footprint.disordered) this.#disorder(table)
    for (const table of footprint.timed) this.#time(table)
    // What cannot be read may look at rows as they lie, wherever.
    if (footprint.everything && !footprint.isEarly) this.#disorder(ANY_TABLE)
    if (this.#lore.setter) this.#turnOff(`${this.#lore.setter} may change the level or the search path`)
    if (footprint.everything) this.#widened.set(textOf(pending), footprint.everything)
    return footprint
  }

  #read({ statements, values, isCommit, isWithin, isAlone }: PendingStep): Footprint {
    if (isCommit) return { ...EMPTY, ends: 'commit' }
    if (isWithin) return everything('it goes on within a function')
    const found = statements
      .map((statement) => statementFootprint(statement, values, this.#lore))
      .reduce(join, EMPTY)
    // What it commits is not only its own.
    const mixes = (found.ends !== undefined || isAlone) && statements.some(({ kind }) => kind === 'work')
    return mixes ? { ...everything('it commits what it does itself'), ends: 'commit' } : found
  }

  /** What a schedule shows that no statement says. */
  read(trace: Trace): void {
    const { steps, moments } = trace
    this.#readSessions()
    this.#readJudged()
    const course = new Course()
    for (const [i, step] of steps.entries()) {
      const moment = moments[i] as Moment
      const pending = moment.pending.get(step.unit) as PendingStep
      const move = { unit: step.unit, footprint: this.footprintOf(pending) }
      this.#readMove(move, pending, course)
      if (step.effect.kind === 'done') this.#readHaste(move, course)
      this.#readResumed(i, trace, course)
      course.take(step, move.footprint, moment.open)
      if (Object.keys(step.poolWaits).length > 0) this.#turnOff('a pool was full')
      const results = [step, ...step.resumed].flatMap(({ unit, effect }) =>
        effect.kind === 'done' && hasMetSeveral(effect.result) ? unit : [],
      )
      for (const unit of results) {
        const at = steps.findLastIndex((other, j) => j <= i && other.unit === unit)
        const pending = moments[at]?.pending.get(unit)
        if (pending) for (const table of this.footprintOf(pending).shows) this.#disorder(table)
      }
    }
    this.#readTries()
  }

  /** Those who waited until this step. */
  #readResumed(i: number, { steps, moments }: Trace, course: Course): void {
    for (const { unit, effect } of steps[i]?.resumed ?? []) {
      const { waiting } = course.of(unit)
      if (!waiting || effect.kind !== 'done') continue
      const next = steps.findIndex((other, j) => j > i && other.unit === unit)
      const after = moments[next]?.pending.get(unit)
      const isLast = after !== undefined && this.footprintOf(after).ends !== undefined
      this.#readRegret(waiting, effect.result, isLast)
    }
  }

  #readMove(move: Move, pending: PendingStep, course: Course): void {
    const { unit, footprint } = move
    if (footprint.everything !== undefined || footprint.adds.length + footprint.changes.length > 0)
      this.#writes.set(unit, (this.#writes.get(unit) ?? new Set()).add(footprint))
    const isNew = course.newLocks(move).some(({ seeks, strength }) => seeks && strength > KEY_SHARE)
    const isStamped = [...footprint.stamps].some((table) => this.isTimed(table))
    const counts = isStamped || (this.hasTimes && footprint.asksForTime)
    if (course.of(unit).hasBegun && counts && !this.isClocked(unit)) {
      this.#clocked.add(actorOf(unit))
      this.version++
    }
    const text = textOf(pending)
    if (footprint.aside.length > 0 && isNew)
      this.#asides.set(JSON.stringify([unit, text, pending.values]), { ...move, text })
  }

  /** It could have waited and did not: then it matters whether it comes before or after the one it could have waited for. */
  #readHaste(move: Move, course: Course): void {
    const { footprint } = move
    if (footprint.conditional.length > 0 && mayWait(move, course)) this.#markEager(footprint)
  }

  /**
   * It has waited, and then the condition did not hold any more: it holds the lock all the same. If nothing comes after it in
   * its transaction, that shows only to somebody who does not wait for locks.
   */
  #readRegret(footprint: Footprint, result: StepResult, isLast: boolean): void {
    const { conditional } = footprint
    const keys = conditional.reduce((sum, place) => sum + (place.keys?.size ?? 0), 0)
    if (keys === 0 || result.error || countOf(result).count >= keys) return
    if (isLast) this.#regretted.add(footprint)
    else this.#markEager(footprint)
  }

  #readTries(): void {
    if (this.#regretted.size === 0) return
    const known = [...this.#footprints.values()]
    const tries = known.flatMap((footprint) => footprint.tries)
    const mayTry = known.some(({ everything }) => everything !== undefined)
    for (const footprint of this.#regretted)
      if (mayTry || meetAny(footprint.conditional, tries)) this.#markEager(footprint)
  }

  #markEager({ text = '' }: Pick<Footprint, 'text'>): void {
    if (this.eager.has(text)) return
    this.eager.add(text)
    this.version++
  }

  #disorder(table: string): void {
    if (this.#disordered.has(table)) return
    this.#disordered.add(table)
    this.version++
  }

  #time(table: string): void {
    if (this.#timed.has(table)) return
    this.#timed.add(table)
    this.version++
  }

  #readSetting({ kind, text, tree }: Statement, values: Values): void {
    if (/\bset_config\b/i.test(text) && /isolation|search_path/i.test([text, ...(values ?? [])].join(' ')))
      this.#turnOff('set_config changes the level or the search path')
    if (kind !== 'begin' && kind !== 'setting') return
    // Of the tree, where all ways to say it are one.
    const said = JSON.stringify(tree)
    if (/\bsearch_path\b/i.test(said)) this.#turnOff('an actor sets search_path')
    this.#readLevel(said)
  }

  /** What the invariant looks at counts like what an actor looks at. The order of rows is its own affair. */
  #readJudged(): void {
    for (const text of this.#sessions.judged.splice(0))
      for (const statement of parseStatements(text))
        for (const table of statementFootprint(statement, undefined, this.#lore).timed) this.#time(table)
  }

  /** Connections may come with settings of their own. */
  #readSessions(): void {
    for (const level of this.#sessions.levels) this.#readLevel(level)
    if (this.#sessions.hasOtherPath) this.#turnOff('a connection comes with another search_path')
  }

  #readLevel(text: string): void {
    if (/\bserializable\b/i.test(text)) this.#turnOff('at SERIALIZABLE reads count as well')
    if (this.isRepeatable || !/\brepeatable\s+read\b/i.test(text)) return
    this.isRepeatable = true
    this.version++
  }

  #turnOff(why: string): void {
    if (this.off) return
    this.off = why
    this.version++
  }
}

/** Rows one after the other; if it has failed, nobody knows how many. */
const hasMetSeveral = (result: StepResult): boolean =>
  result.error
    ? result.error.code !== IN_FAILED_TRANSACTION
    : Math.max(result.rowCount, countOf(result).count) > 1

const IN_FAILED_TRANSACTION = '25P02'

const textOf = ({ statements }: PendingStep): string => statements.map(({ text }) => text).join('; ')
