import { ExplorationError } from '../../../errors.js'
import type { GatedSession } from '../../gate/gated-session.js'
import type { Reset } from '../reset/reset.js'
import type { SchemaCatalog } from '../statements/schema-catalog.js'

/** Statements whose text does not show what they write. */
const HIDES_WRITES = /(?:^|;\s*)(?:do|call|execute)\b/im
const PREPARES = /^\s*prepare\s+transaction\b/i

interface TableRestoreOptions {
  readonly reset: Reset
  readonly catalog: SchemaCatalog
  /** True if the option `reset` restores the tables. */
  readonly isByUser: boolean
  /** True if the writes of each transaction must be known even if `reset` restores the tables. */
  readonly needsWrites: boolean
}

/**
 * Learns which tables each transaction has written, before the transaction ends, so that the explorer can restore them before
 * the next schedule. Refuses statements whose effects the explorer could not undo.
 */
export class TableRestore {
  readonly #options: TableRestoreOptions
  /** Transactions whose writes are known, as the texts of their statements. */
  readonly #knownTransactions = new Set<string>()

  constructor(options: TableRestoreOptions) {
    this.#options = options
  }

  /** Called before an actor's step is released. */
  async beforeStep(session: GatedSession, unit: string): Promise<void> {
    const { step } = session
    if (!step) return
    if (step.commitsOwnWork) this.refuseHiddenWrites(unit, step.text)
    if (PREPARES.test(step.text) && !this.#options.isByUser)
      throw new ExplorationError(
        `${unit} prepares a transaction, which outlives it: ${JSON.stringify(step.text)}. Pass a \`reset\` that ends it, and empties the tables too.`,
        'reset',
        unit,
      )
    if (step.changesSchema) this.#refuseSchemaChange(unit, step.text)
    if (step.endsTransaction) await this.#learnWrites(session, unit)
  }

  /** Called before a transaction of `setup` ends. */
  async beforeSetupEnds(session: GatedSession): Promise<void> {
    const { isByUser, reset } = this.#options
    if (isByUser) return
    if (session.step?.commitsOwnWork) throw hiddenWrites('`setup`', session.step.text)
    if (session.status !== 'T') return
    await reset.learnWrites(session.pid)
    await reset.protectUpdates(async (sql) => (await session.execute(sql)).rows[0]?.[0] ?? '')
  }

  refuseHiddenWrites(unit: string, text: string): void {
    if (!this.#options.isByUser) throw hiddenWrites(unit, text)
  }

  /** Asks the server what the open transaction has written, unless a transaction with the same statements was seen before. */
  async #learnWrites(session: GatedSession, unit: string): Promise<void> {
    const { reset, catalog, isByUser, needsWrites } = this.#options
    if ((isByUser && !needsWrites) || session.status === 'I') return
    const key = session.transaction.join('\n')
    // The writes of functions, triggers and partitions may depend on the data.
    const isKnown = this.#knownTransactions.has(key)
    if (isKnown && !catalog.hasHiddenWriters && !HIDES_WRITES.test(key)) return
    this.#knownTransactions.add(key)
    const before = reset.newRelations
    await reset.learnWrites(session.pid)
    // A function has created a table. A temporary one is dropped with its session.
    const isNew = reset.newRelations > before && !/\btemp(?:orary)?\b/i.test(key)
    if (isNew) this.#refuseSchemaChange(unit, session.transaction.join(' '))
  }

  /** Emptying tables does not undo a change of the schema, so the next schedule would start differently. */
  #refuseSchemaChange(unit: string, text: string): void {
    if (this.#options.isByUser) return void this.#options.catalog.forget()
    throw new ExplorationError(
      `${unit} changes the schema: ${JSON.stringify(text)}. That cannot be undone between one time and the next. Pass a \`reset\` that does, and empties the tables too.`,
      'reset',
      unit,
    )
  }
}

/** The error for a statement that commits within one message: its writes cannot be read before its COMMIT. */
export function hiddenWrites(who: string, text: string): ExplorationError {
  return new ExplorationError(
    `${who} runs something that commits by itself: ${JSON.stringify(text)}. What it has written cannot be seen, and so not be undone between one time and the next. Send its statements one by one, or pass a \`reset\` that undoes it.`,
    'reset',
    who,
  )
}
