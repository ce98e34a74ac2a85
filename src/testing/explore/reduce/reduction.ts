/**
 * Partial-order reduction: which schedules the search may leave out.
 *
 * Two steps of different actors are independent if their order changes neither a result nor the final state. A wait for a
 * lock alone changes neither. Schedules that differ only by swaps of adjacent independent steps form a class (a Mazurkiewicz
 * trace). The search must run at least one schedule of each class.
 *
 * - Dependence: `dependence.ts` has one rule for each reason why an order may matter, such as a read and the COMMIT of what
 *   it reads. A rule compares footprints, and what the open transactions have done so far (`execution.ts`). A step includes
 *   the waiting steps that it may resume. Two steps of one actor are always dependent.
 * - Sleep sets (`../search/sleep-sets.ts`): a choice point has a branch for each unit that is awake there. The unit of one
 *   branch sleeps in the later branches, until a step that depends on its step is taken. A schedule in which all units sleep
 *   is redundant from there on. There are no persistent sets or backtrack sets.
 * - No class is lost: as long as a unit sleeps, its step could be swapped back to the choice point where it fell asleep. The
 *   resulting schedule is in the same class, and the branch that took the step there runs that class.
 * - This needs every dependence to be found. So a footprint is an upper bound, and a statement that is not understood
 *   depends on every step. An event that no footprint predicts, such as a deadlock, wakes all units.
 * - A trace may show a dependence that no text shows, such as a result that depends on the physical order of rows.
 *   `LearnedFacts` keeps it for all schedules, and the search starts anew. Where no rule is known to be enough
 *   (SERIALIZABLE, another search_path, a full pool), the reduction is disabled and every order is run.
 *
 * The reduction does not see memory that actors share (the option `everyOrder` is for that). A COMMIT in the middle of
 * another actor's statement is not a step, so the search cannot try it; `unlocked-reads.ts` writes a note.
 */
import { countOf, type StepResult } from '../../gate/result.js'
import { EMPTY, type Footprint, join, unbounded } from '../footprint/footprint.js'
import type { Values } from '../footprint/key-values.js'
import { statementFootprint } from '../footprint/statement-footprint.js'
import type { PendingStep } from '../schedule/pending-step.js'
import type { StepContext, Trace } from '../schedule/trace.js'
import type { ObservedSettings } from '../session/observed-settings.js'
import { parseStatements, type Statement } from '../statements/parse-statements.js'
import type { SchemaInfo } from '../statements/schema-info.js'
import { areDependent, DEPENDENCE_RULES, type DependenceRule, mayBlock } from './dependence.js'
import { Execution, type Transition } from './execution.js'
import { LearnedFacts } from './learned-facts.js'
import { RowRechecks } from './row-rechecks.js'
import { UnlockedReads } from './unlocked-reads.js'

/**
 * Decides whether two steps are dependent. Learns from statements and traces. Each new fact raises `version`, which tells
 * the search to start anew.
 */
export class Reduction {
  readonly #facts = new LearnedFacts()
  readonly #rowRechecks = new RowRechecks(this.#facts)
  readonly #unlockedReads = new UnlockedReads()
  readonly #schemaInfo: SchemaInfo
  readonly #settings: ObservedSettings
  readonly #rules: readonly DependenceRule[]
  readonly #footprints = new Map<string, Footprint>()
  /** By the text of a statement: why its footprint is unbounded. */
  readonly #unboundedTexts = new Map<string, string>()

  constructor(
    schemaInfo: SchemaInfo,
    settings: ObservedSettings,
    rules: readonly DependenceRule[] = DEPENDENCE_RULES,
  ) {
    this.#schemaInfo = schemaInfo
    this.#settings = settings
    this.#rules = rules
    this.#learnFromSettings()
  }

  get version(): number {
    return this.#facts.version
  }

  /** Why every schedule must be run; undefined if some may be left out. */
  get disabledReason(): string | undefined {
    return this.#facts.disabledReason
  }

  /** True if some result depends on the physical order of rows. */
  get readsRowOrder(): boolean {
    return this.#facts.orderSensitiveTables.length > 0
  }

  get notes(): readonly string[] {
    return this.#unlockedReads.notes
  }

  /** Statements and tables with more dependencies than their texts show, so that more schedules were run; and why. */
  get widened(): readonly string[] {
    const { orderSensitiveTables, timeReadTables } = this.#facts
    const isTimestamped = (table: string): boolean =>
      [...this.#footprints.values()].some(({ timestampedTables }) => timestampedTables.has(table))
    return [
      ...[...this.#unboundedTexts].map(([text, why]) => `${JSON.stringify(text)}: ${why}`),
      ...orderSensitiveTables.map(
        (table) => `${table}: some result depends on the physical order of its rows`,
      ),
      ...timeReadTables
        .filter(isTimestamped)
        .map((table) => `${table}: some statement reads times that are written into it`),
    ]
  }

  /** Called after too many restarts of the search. From now on every order is run. */
  disableAfterRestarts(): void {
    this.#facts.disableReduction('each schedule showed something new')
  }

  areDependent(a: Transition, b: Transition, execution: Execution): boolean {
    return areDependent(a, b, execution, this.#facts, this.#rules)
  }

  /** The footprint of a step. The first call for a step also learns from its statements. */
  footprintOf(pending: PendingStep): Footprint {
    const { precedingTexts, statements, values, isCommit, isInsideFunction, isAutocommit } = pending
    const texts = statements.map(({ text }) => text)
    const key = JSON.stringify([precedingTexts, texts, values, isCommit, isInsideFunction, isAutocommit])
    const known = this.#footprints.get(key)
    if (known) return known
    const footprint = { ...this.#computeFootprint(pending), text: texts.join('; ') }
    this.#footprints.set(key, footprint)
    this.#learnFromFootprint(footprint)
    for (const statement of [...precedingTexts.flatMap(parseStatements), ...statements])
      this.#learnFromStatement(statement, values)
    return footprint
  }

  #computeFootprint(pending: PendingStep): Footprint {
    const { statements, values, isCommit, isInsideFunction, isAutocommit } = pending
    if (isCommit) return { ...EMPTY, ends: 'commit' }
    if (isInsideFunction) return unbounded('it goes on within a function')
    const found = statements
      .map((statement) => statementFootprint(statement, values, this.#schemaInfo))
      .reduce(join, EMPTY)
    const commitsItself =
      (found.ends !== undefined || isAutocommit) && statements.some(({ kind }) => kind === 'work')
    return commitsItself ? { ...unbounded('it commits what it does itself'), ends: 'commit' } : found
  }

  #learnFromFootprint(footprint: Footprint): void {
    const { orderSensitiveTables, timeReadTables, unboundedBecause, precedesSnapshot, text = '' } = footprint
    for (const table of orderSensitiveTables) this.#facts.addOrderSensitive(table)
    for (const table of timeReadTables) this.#facts.addTimeRead(table)
    if (unboundedBecause && !precedesSnapshot) this.#facts.addAllOrderSensitive()
    if (unboundedBecause) this.#unboundedTexts.set(text, unboundedBecause)
    const { settingsChanger } = this.#schemaInfo
    if (settingsChanger)
      this.#facts.disableReduction(`${settingsChanger} may change the level or the search path`)
  }

  #learnFromStatement({ kind, text, tree }: Statement, values: Values): void {
    if (/\bset_config\b/i.test(text) && /isolation|search_path/i.test([text, ...(values ?? [])].join(' ')))
      this.#facts.disableReduction('set_config changes the level or the search path')
    if (kind !== 'begin' && kind !== 'setting') return
    // The parse tree does not depend on how a setting is written.
    const setting = JSON.stringify(tree)
    if (/\bsearch_path\b/i.test(setting)) this.#facts.disableReduction('an actor sets search_path')
    this.#facts.addIsolationLevel(setting)
  }

  /** Learns from the settings of connections, since a connection of the user may have its own. */
  #learnFromSettings(): void {
    for (const level of this.#settings.isolationLevels) this.#facts.addIsolationLevel(level)
    if (this.#settings.hasOtherSearchPath)
      this.#facts.disableReduction('a connection comes with another search_path')
  }

  /** Learns which times the invariant reads: they count like those that an actor reads. The order of its rows does not. */
  #learnFromInvariant(): void {
    for (const text of this.#settings.takeInvariantQueries())
      for (const statement of parseStatements(text))
        for (const table of statementFootprint(statement, undefined, this.#schemaInfo).timeReadTables)
          this.#facts.addTimeRead(table)
  }

  /** Learns from a trace what the texts of its statements do not show. */
  learnFrom(trace: Trace): void {
    const { steps, contexts } = trace
    this.#learnFromSettings()
    this.#learnFromInvariant()
    const execution = new Execution()
    for (const [i, step] of steps.entries()) {
      const context = contexts[i] as StepContext
      const pending = context.pending.get(step.unit) as PendingStep
      const transition = { unit: step.unit, footprint: this.footprintOf(pending) }
      this.#unlockedReads.observe(transition, pending.values, execution)
      this.#learnStartTime(transition, execution)
      if (step.effect.kind === 'done') this.#learnFromSkippedWait(transition, execution)
      this.#learnFromResumed(i, trace, execution)
      execution.apply(step, transition.footprint, context.openUnits)
      if (Object.keys(step.poolWaits).length > 0) this.#facts.disableReduction('a pool was full')
      this.#learnRowOrder(i, trace)
    }
    this.#rowRechecks.compareWithLockProbes([...this.#footprints.values()])
  }

  /**
   * `now()` returns the start of the transaction. If a step after the first reads or writes it, and some statement reads
   * such times, the order in which transactions start counts.
   */
  #learnStartTime({ unit, footprint }: Transition, execution: Execution): void {
    const { hasTimeSensitiveTables } = this.#facts
    const isTimestamped = [...footprint.timestampedTables].some((table) => this.#facts.isTimeSensitive(table))
    const counts = isTimestamped || (hasTimeSensitiveTables && footprint.readsClock === true)
    if (counts && execution.stateOf(unit).hasBegun) this.#facts.addStartTimeRead(unit)
  }

  /** Learns from a statement that did not wait, although another unit may have a lock that it wants. */
  #learnFromSkippedWait(transition: Transition, execution: Execution): void {
    const { footprint } = transition
    if (footprint.conditionalRows.length > 0 && mayBlock(transition, execution))
      this.#rowRechecks.addSkippedWait(footprint)
  }

  /** Learns from the units whose wait ended in step `i`. */
  #learnFromResumed(i: number, { steps, contexts }: Trace, execution: Execution): void {
    for (const { unit, effect } of steps[i]?.resumed ?? []) {
      const { blockedStep } = execution.stateOf(unit)
      if (!blockedStep || effect.kind !== 'done') continue
      const next = steps.findIndex((other, j) => j > i && other.unit === unit)
      const after = contexts[next]?.pending.get(unit)
      const isLast = after !== undefined && this.footprintOf(after).ends !== undefined
      this.#rowRechecks.addEndedWait(blockedStep, effect.result, isLast)
    }
  }

  /** Learns from statements that returned several rows, or may have: their results show the physical order of rows. */
  #learnRowOrder(i: number, { steps, contexts }: Trace): void {
    const step = steps[i]
    for (const { unit, effect } of step ? [step, ...step.resumed] : []) {
      if (effect.kind !== 'done' || !hasSeveralRows(effect.result)) continue
      const at = steps.findLastIndex((other, j) => j <= i && other.unit === unit)
      const pending = contexts[at]?.pending.get(unit)
      const tables = pending ? this.footprintOf(pending).unorderedResultTables : []
      for (const table of tables) this.#facts.addOrderSensitive(table)
    }
  }
}

const IN_FAILED_TRANSACTION = '25P02'

/** True if the statement affected or returned several rows. If it failed, their number is unknown, so this is true. */
const hasSeveralRows = (result: StepResult): boolean =>
  result.error
    ? result.error.code !== IN_FAILED_TRANSACTION
    : Math.max(result.rowCount, countOf(result).count) > 1
