import { actorOf } from '../schedule/trace.js'

/** Stands for every table: a statement with an unbounded footprint may read any table in the physical order of its rows. */
const ANY_TABLE = ''

/** Facts that statements and traces have shown so far. Each fact holds for every schedule, and makes more steps dependent. */
export class LearnedFacts {
  /** The number of facts. The search starts anew when it has grown. */
  version = 0
  /** True if some transaction may be at REPEATABLE READ. */
  hasRepeatableRead = false
  /** Why no schedule may be left out; undefined if some may. */
  disabledReason: string | undefined
  /**
   * Texts of statements with a condition on a row, whose result depends on whether they wait for the row. Either such a
   * statement did not wait for a locked row, since the row did not meet the condition. Or it waited, and then held the lock
   * of a row that no longer met the condition.
   */
  readonly waitDependentTexts = new Set<string>()
  readonly #orderSensitive = new Set<string>()
  readonly #timeRead = new Set<string>()
  readonly #startTimeActors = new Set<string>()

  /** True if some result depends on the physical order of the rows in this table. */
  isOrderSensitive(table: string): boolean {
    return this.#orderSensitive.has(table) || this.#orderSensitive.has(ANY_TABLE)
  }

  /** True if some statement reads times of this table. */
  isTimeSensitive(table: string): boolean {
    return this.#timeRead.has(table) || this.#orderSensitive.has(ANY_TABLE)
  }

  /** True if some statement reads times of some table. */
  get hasTimeSensitiveTables(): boolean {
    return this.#timeRead.size > 0 || this.#orderSensitive.has(ANY_TABLE)
  }

  /** True if some statement reads a time that depends on when a transaction of this unit's actor began or first wrote. */
  isStartTimeRead(unit: string): boolean {
    return this.#startTimeActors.has(actorOf(unit))
  }

  get orderSensitiveTables(): readonly string[] {
    return [...this.#orderSensitive].filter((table) => table !== ANY_TABLE)
  }

  get timeReadTables(): readonly string[] {
    return [...this.#timeRead]
  }

  addOrderSensitive(table: string): void {
    this.#add(this.#orderSensitive, table)
  }

  addAllOrderSensitive(): void {
    this.#add(this.#orderSensitive, ANY_TABLE)
  }

  addTimeRead(table: string): void {
    this.#add(this.#timeRead, table)
  }

  addStartTimeRead(unit: string): void {
    this.#add(this.#startTimeActors, actorOf(unit))
  }

  addWaitDependent(text: string): void {
    this.#add(this.waitDependentTexts, text)
  }

  /** Learns from a text that may name an isolation level. */
  addIsolationLevel(text: string): void {
    // guard: explorer.reduce-serializable
    if (/\bserializable\b/i.test(text)) this.disableReduction('at SERIALIZABLE reads count as well')
    if (this.hasRepeatableRead || !/\brepeatable\s+read\b/i.test(text)) return
    this.hasRepeatableRead = true
    this.version++
  }

  disableReduction(why: string): void {
    if (this.disabledReason) return
    this.disabledReason = why
    this.version++
  }

  #add(facts: Set<string>, fact: string): void {
    if (facts.has(fact)) return
    facts.add(fact)
    this.version++
  }
}
