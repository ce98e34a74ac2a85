import { countOf, type StepResult } from '../../gate/result.js'
import type { Footprint } from '../reduce/footprint.js'
import type { Values } from '../reduce/key-values.js'
import type { Lore } from '../reduce/statement-reader.js'
import type { PendingStep } from '../schedule/pending-step.js'
import { actorOf, type Effect, type Moment, type Trace } from '../schedule/trace.js'
import { bareName } from '../statements/table-facts.js'
import {
  keysAnswered,
  type ReadShape,
  type StatementShape,
  shapeOf,
  type WriteShape,
} from './statement-shape.js'

/** What one statement did in a schedule. */
export interface Access {
  readonly unit: string
  readonly actor: string
  /** Its place among the steps of its unit, as printed. */
  readonly number: number
  /** Index of the step that it began with. */
  readonly step: number
  /** Index of the step in which it was answered: a later one of somebody else's, if it had to wait. */
  readonly done: number
  /** What it was, with its parameters. */
  readonly sign: string
  readonly values: Values
  readonly footprint: Footprint
  readonly shape: StatementShape | undefined
  readonly result: StepResult
  readonly transaction: Transaction
}

/** From its first step on. A statement outside a transaction is one by itself. */
export interface Transaction {
  /** Index of the step that committed it; undefined: it never did. */
  readonly committed?: number | undefined
  /** The step that began what it sees, at levels where that happens once. */
  readonly snapshot?: number | undefined
}

export interface Read extends ReadShape {
  readonly access: Access
  /** It saw what was committed in steps before this: not always a whole number, since who waited goes on within a step. */
  readonly sees: number
}

/** Rows that were written, and are committed. */
export interface Write extends WriteShape {
  readonly access: Access
  readonly committed: number
}

export interface History {
  readonly accesses: readonly Access[]
  readonly reads: readonly Read[]
  readonly writes: readonly Write[]
  /** Tables that were written in a way that is not understood. */
  readonly vague: ReadonlySet<string>
  /** Tables that had one row, or none, all the time. */
  readonly singles: ReadonlySet<string>
  /** Index of a step to its name in the printout. */
  readonly nameOf: (step: number) => string
}

/** What is known of the actors' statements beside the trace. */
export interface Knowledge {
  readonly footprintOf: (pending: PendingStep) => Footprint
  readonly lore: Lore
  /** The level of transactions that do not name one. */
  readonly isolation: string
}

interface DraftTransaction {
  committed?: number
  snapshot?: number
  isRepeatable: boolean
  hasSavepoint: boolean
}

type Draft = { -readonly [K in keyof Access]: Access[K] } & { transaction: DraftTransaction }

/** Undefined: some step may have done what nobody can tell from outside (a function, a trigger), so that nothing is certain. */
export function historyOf({ steps, moments }: Trace, knowledge: Knowledge): History | undefined {
  const book = new Book(knowledge)
  for (const [i, { unit, effect, resumed }] of steps.entries()) {
    const { pending, open } = moments[i] as Moment
    const begun = book.begin(unit, i, pending.get(unit))
    const answers = begun ? [{ unit, effect }, ...resumed] : []
    if (!begun || !answers.every((one) => book.answer(one.unit, one.effect, i, open))) return undefined
  }
  return book.history
}

/** Keeps book of transactions, step by step. Says false where it cannot. */
class Book {
  readonly #knowledge: Knowledge
  readonly #accesses: Draft[] = []
  readonly #running = new Map<string, Draft>()
  readonly #open = new Map<string, DraftTransaction>()
  readonly #counts = new Map<string, number>()
  readonly #names: string[] = []
  /** Tables as statements name them. */
  readonly #tables = new Set<string>()

  constructor(knowledge: Knowledge) {
    this.#knowledge = knowledge
  }

  begin(unit: string, step: number, pending: PendingStep | undefined): boolean {
    const number = (this.#counts.get(unit) ?? 0) + 1
    this.#counts.set(unit, number)
    this.#names.push(`${unit} ${number}`)
    // Still running: what it did before has ended without a step of anybody's, by a timeout of its own.
    const transaction = pending && !this.#running.has(unit) && this.#transactionOf(unit, pending)
    const footprint = pending && this.#knowledge.footprintOf(pending)
    if (!transaction || !footprint || footprint.everything) return false
    const { statements, values } = pending
    for (const { tables } of statements) for (const name of tables) this.#tables.add(name)
    const work = statements.filter(({ kind }) => kind === 'work' || kind === 'read' || kind === 'whole')
    if (transaction.isRepeatable && work.length > 0) transaction.snapshot ??= step
    const [only, ...more] = work
    this.#running.set(unit, {
      unit,
      actor: actorOf(unit),
      number,
      step,
      done: step,
      sign: JSON.stringify([work.map(({ text }) => text), values]),
      values,
      footprint,
      shape: only && more.length === 0 ? shapeOf(only, values, this.#knowledge.lore) : undefined,
      result: { tag: '', rows: [], rowCount: 0 },
      transaction,
    })
    return true
  }

  #transactionOf(unit: string, pending: PendingStep): DraftTransaction | undefined {
    const { before, statements } = pending
    const level = levelOf(pending)
    if (level === 'unknown' || statements.some(({ kind }) => kind === 'rollback-to')) return undefined
    const known = this.#open.get(unit)
    const transaction = known ?? {
      isRepeatable: REPEATABLE.test(this.#knowledge.isolation),
      hasSavepoint: false,
    }
    if (level !== undefined) transaction.isRepeatable = REPEATABLE.test(level)
    transaction.hasSavepoint ||=
      statements.some(({ kind }) => kind === 'savepoint') ||
      before.some((text) => /^\s*savepoint\b/i.test(text))
    this.#open.set(unit, transaction)
    return transaction
  }

  answer(unit: string, effect: Effect, step: number, open: ReadonlySet<string>): boolean {
    const access = this.#running.get(unit)
    if (effect.kind !== 'done') return effect.kind === 'waits'
    if (!access) return false
    const { transaction, footprint } = access
    access.done = step
    access.result = effect.result
    this.#running.delete(unit)
    this.#accesses.push(access)
    const { error, tag } = effect.result
    const isOver = error !== undefined || !open.has(unit)
    if (error && transaction.hasSavepoint) return false
    if (footprint.ends && !isOver) return false // AND CHAIN
    if (isOver && !error && footprint.ends !== 'rollback' && tag !== 'ROLLBACK') transaction.committed = step
    if (isOver) this.#open.delete(unit)
    return true
  }

  get history(): History | undefined {
    // `stock` and `app.stock` may be one table or two.
    if (new Set([...this.#tables].map(bareName)).size < this.#tables.size) return undefined
    const accesses = this.#accesses
    const reads = accesses.flatMap(readsOf)
    return {
      accesses,
      reads,
      writes: accesses.flatMap(writesOf),
      vague: new Set(accesses.flatMap(vagueOf)),
      singles: singlesOf(accesses, reads),
      nameOf: (step) => this.#names[step] ?? '',
    }
  }
}

const REPEATABLE = /repeatable|serializable/i

/** Of a transaction that names its own; `unknown`: it is set in a way that outlives the transaction. */
function levelOf({ before, statements }: PendingStep): string | undefined {
  const texts = [...before, ...statements.map(({ text }) => text)]
  const naming = texts.filter((text) =>
    /\b(repeatable\s+read|serializable|read\s+(un)?committed|transaction_isolation)\b/i.test(text),
  )
  if (naming.some((text) => !/^\s*(begin|start\s+transaction|set\s+transaction)\b/i.test(text)))
    return naming.some((text) => /^\s*(set|alter|reset)\b|set_config/i.test(text)) ? 'unknown' : undefined
  return naming.at(-1)
}

function readsOf(access: Access): Read[] {
  const { step, done, shape, result, transaction } = access
  if (result.error || !shape) return []
  return shape.reads.map((read) => {
    const newest = done === step ? step : done + 0.5
    const sees = transaction.snapshot ?? (read.locks && !read.isWithin ? newest : step)
    return { ...read, keys: read.keys ?? keysAnswered(read, result), access, sees }
  })
}

function vagueOf({ footprint, shape }: Access): string[] {
  return shape?.write ? [] : [...footprint.adds, ...footprint.changes].map(({ table }) => table)
}

function writesOf(access: Access): Write[] {
  const { shape, transaction } = access
  if (!shape?.write || transaction.committed === undefined || writtenBy(access) === 0) return []
  return [{ ...shape.write, access, committed: transaction.committed }]
}

/** Somebody asked for all rows and got one, and nobody has added any. */
function singlesOf(accesses: readonly Access[], reads: readonly Read[]): ReadonlySet<string> {
  const added = new Set(accesses.flatMap(({ footprint }) => footprint.adds.map(({ table }) => table)))
  const alone = reads.filter(
    ({ where, isCut, isPlain, isWithin, locks, access }) =>
      where === undefined && !isCut && isPlain && !isWithin && !locks && access.result.rowCount === 1,
  )
  return new Set(alone.flatMap(({ table }) => (added.has(table) ? [] : table)))
}

/** Rows, as the server counts them. */
export function writtenBy({ result }: Access): number {
  const { command, count } = countOf(result)
  return command === 'SELECT' ? 0 : count
}
