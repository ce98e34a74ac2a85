import type { PendingStep } from '../schedule/pending-step.js'
import type { Trace } from '../schedule/trace.js'
import type { Statement } from '../statements/parse-statements.js'
import type { Course, Move } from './course.js'
import { areDependent, DEPENDENT_PAIRS, type DependentPair, type Levels } from './dependence.js'
import { EMPTY, everything, type Footprint, join } from './footprint.js'
import type { Values } from './key-values.js'
import { type Lore, statementFootprint } from './statement-footprint.js'

/**
 * Knows which steps commute, so that of all schedules that differ in the order of such steps only, one is run. What it
 * learns on the way may show that it knew too little: then `version` goes up, and the search must start anew.
 */
export class Reduction implements Levels {
  version = 0
  isRepeatable = false
  /** Why every schedule must be run. */
  off: string | undefined
  readonly #disordered = new Set<string>()
  readonly #lore: Lore
  readonly #pairs: readonly DependentPair[]
  readonly #footprints = new Map<string, Footprint>()
  /** By the statement: why it was taken to touch everything. */
  readonly #widened = new Map<string, string>()

  constructor(lore: Lore, isolation: string, pairs: readonly DependentPair[] = DEPENDENT_PAIRS) {
    this.#lore = lore
    this.#pairs = pairs
    this.#readLevel(isolation)
  }

  get disordered(): ReadonlySet<string> {
    return this.#disordered
  }

  /** What was taken to touch more than it says, and why. */
  get widened(): readonly string[] {
    const tables = [...this.#disordered].map(
      (table) => `${table}: somebody takes its rows in the order in which they happen to lie there`,
    )
    return [
      ...new Set([...[...this.#widened].map(([text, why]) => `${JSON.stringify(text)}: ${why}`), ...tables]),
    ]
  }

  areDependent(a: Move, b: Move, course: Course): boolean {
    return areDependent(a, b, course, this, this.#pairs)
  }

  footprintOf(pending: PendingStep): Footprint {
    const { before, statements, values, isCommit, isWithin } = pending
    for (const text of before) this.#readSetting(text)
    for (const { text } of statements) this.#readSetting(text, values)
    if (isCommit) return { ...EMPTY, ends: 'commit' }
    if (isWithin) return this.#widen(statements, everything('it goes on within a function'))
    const key = JSON.stringify([statements.map(({ text }) => text), values])
    const known = this.#footprints.get(key)
    if (known) return known
    const found = statements
      .map((statement) => statementFootprint(statement, values, this.#lore))
      .reduce(join, EMPTY)
    // What it commits is not only its own.
    const mixes = found.ends && statements.some(({ kind }) => kind === 'work')
    const footprint = mixes ? everything('it holds a COMMIT and what it commits') : found
    this.#footprints.set(key, this.#widen(statements, footprint))
    for (const table of footprint.disordered) this.#disorder(table)
    return footprint
  }

  /** What a schedule shows that no statement says. */
  read({ steps, moments }: Trace): void {
    for (const [i, step] of steps.entries()) {
      if (Object.keys(step.poolWaits).length > 0) this.#turnOff('a pool was full')
      const results = [step, ...step.resumed].flatMap(({ unit, effect }) =>
        effect.kind === 'done' && effect.result.rowCount > 1 ? unit : [],
      )
      for (const unit of results) {
        const at = steps.findLastIndex((other, j) => j <= i && other.unit === unit)
        const pending = moments[at]?.pending.get(unit)
        if (pending) for (const table of this.footprintOf(pending).shows) this.#disorder(table)
      }
    }
  }

  #widen(statements: readonly Statement[], footprint: Footprint): Footprint {
    if (footprint.everything)
      this.#widened.set(statements.map(({ text }) => text).join('; '), footprint.everything)
    return footprint
  }

  #disorder(table: string): void {
    if (this.#disordered.has(table)) return
    this.#disordered.add(table)
    this.version++
  }

  #readSetting(text: string, values: Values = []): void {
    if (/\bset_config\b/i.test(text)) {
      const all = [text, ...(values ?? [])].join(' ')
      if (/isolation|search_path/i.test(all)) this.#turnOff('set_config changes the level or the search path')
    }
    if (!/^\s*(?:set|begin|start|commit|rollback|end|abort|alter)\b/i.test(text)) return
    if (/\bsearch_path\b/i.test(text)) this.#turnOff('an actor sets search_path')
    this.#readLevel(text)
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
