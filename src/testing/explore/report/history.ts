import { countOf, type StepResult } from '../../gate/result.js'
import type { Footprint } from '../footprint/footprint.js'
import type { Values } from '../footprint/key-values.js'
import type { PendingStep } from '../schedule/pending-step.js'
import { actorOf, type Effect, type StepContext, type Trace } from '../schedule/trace.js'
import type { SchemaInfo } from '../statements/schema-info.js'
import { bareName } from '../statements/table-catalog.js'
import { keysInResult, type ReadShape } from './read-shape.js'
import { type StatementShape, shapeOf } from './statement-shape.js'
import type { WriteShape } from './write-shape.js'

/** One statement of a schedule, with its effect. */
export interface Access {
  readonly unit: string
  readonly actor: string
  /** Its number among the steps of its unit, as in the printout. */
  readonly number: number
  /** Index of the step in which the statement began. */
  readonly step: number
  /** Index of the step in which the statement was done: a later step of another unit, if it had to wait. */
  readonly answeredAt: number
  /** The statements of the step with their parameters. */
  readonly signature: string
  readonly values: Values
  readonly footprint: Footprint
  readonly shape: StatementShape | undefined
  readonly result: StepResult
  readonly transaction: Transaction
}

/** A transaction from its first step on. A statement outside a transaction is one by itself. */
export interface Transaction {
  /** Index of the step that committed it; undefined if it was not committed. */
  readonly committed?: number | undefined
  /** Index of the step that took its snapshot, at REPEATABLE READ and above. */
  readonly snapshot?: number | undefined
}

export interface Read extends ReadShape {
  readonly access: Access
  /** The read saw the commits of steps before this one. Ends in .5 for a read that waited, since it ends within a step. */
  readonly seesUntil: number
}

/** A write that was committed. */
export interface Write extends WriteShape {
  readonly access: Access
  readonly committed: number
}

export interface History {
  readonly accesses: readonly Access[]
  readonly reads: readonly Read[]
  readonly writes: readonly Write[]
  /** Tables with writes that are not understood. */
  readonly unclearTables: ReadonlySet<string>
  /** Tables that never had more than one row. */
  readonly singleRowTables: ReadonlySet<string>
  /** Index of a step to its name in the printout. */
  readonly nameOf: (step: number) => string
}

/** Facts about the statements that the trace does not contain. */
export interface HistoryContext {
  readonly footprintOf: (pending: PendingStep) => Footprint
  readonly schemaInfo: SchemaInfo
  /** The isolation level of transactions that name none. */
  readonly isolation: string
}

interface DraftTransaction {
  committed?: number
  snapshot?: number
  isRepeatable: boolean
  hasSavepoint: boolean
}

type Draft = { -readonly [K in keyof Access]: Access[K] } & { transaction: DraftTransaction }

/** Builds the history of a trace. Undefined if a step may have hidden effects (a function, a trigger): nothing is certain then. */
export function buildHistory({ steps, contexts }: Trace, context: HistoryContext): History | undefined {
  const recorder = new HistoryRecorder(context)
  for (const [i, { unit, effect, resumed }] of steps.entries()) {
    const { pending, openUnits } = contexts[i] as StepContext
    const begun = recorder.begin(unit, i, pending.get(unit))
    const answers = begun ? [{ unit, effect }, ...resumed] : []
    if (!begun || !answers.every((one) => recorder.answer(one.unit, one.effect, i, openUnits)))
      return undefined
  }
  return recorder.history
}

/** Records, step by step, what each transaction does. `begin` and `answer` return false if that is not certain. */
class HistoryRecorder {
  readonly #context: HistoryContext
  readonly #accesses: Draft[] = []
  readonly #running = new Map<string, Draft>()
  readonly #open = new Map<string, DraftTransaction>()
  readonly #counts = new Map<string, number>()
  readonly #names: string[] = []
  /** The names of tables, as statements write them. */
  readonly #tables = new Set<string>()

  constructor(context: HistoryContext) {
    this.#context = context
  }

  begin(unit: string, step: number, pending: PendingStep | undefined): boolean {
    const number = (this.#counts.get(unit) ?? 0) + 1
    this.#counts.set(unit, number)
    this.#names.push(`${unit} ${number}`)
    // If the unit is still running, a timeout has ended its last statement without a step.
    const transaction = pending && !this.#running.has(unit) && this.#transactionOf(unit, pending)
    const footprint = pending && this.#context.footprintOf(pending)
    if (!transaction || !footprint || footprint.unboundedBecause) return false
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
      answeredAt: step,
      signature: JSON.stringify([work.map(({ text }) => text), values]),
      values,
      footprint,
      shape: only && more.length === 0 ? shapeOf(only, values, this.#context.schemaInfo) : undefined,
      result: { tag: '', rows: [], rowCount: 0 },
      transaction,
    })
    return true
  }

  #transactionOf(unit: string, pending: PendingStep): DraftTransaction | undefined {
    const { precedingTexts, statements } = pending
    const level = levelOf(pending)
    if (level === 'unknown' || statements.some(({ kind }) => kind === 'rollback-to')) return undefined
    const known = this.#open.get(unit)
    const transaction = known ?? {
      isRepeatable: REPEATABLE.test(this.#context.isolation),
      hasSavepoint: false,
    }
    if (level !== undefined) transaction.isRepeatable = REPEATABLE.test(level)
    transaction.hasSavepoint ||=
      statements.some(({ kind }) => kind === 'savepoint') ||
      precedingTexts.some((text) => /^\s*savepoint\b/i.test(text))
    this.#open.set(unit, transaction)
    return transaction
  }

  answer(unit: string, effect: Effect, step: number, open: ReadonlySet<string>): boolean {
    const access = this.#running.get(unit)
    if (effect.kind !== 'done') return effect.kind === 'waits'
    if (!access) return false
    const { transaction, footprint } = access
    access.answeredAt = step
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
      unclearTables: new Set(accesses.flatMap(unclearWritesOf)),
      singleRowTables: singleRowTablesOf(accesses, reads),
      nameOf: (step) => this.#names[step] ?? '',
    }
  }
}

const REPEATABLE = /repeatable|serializable/i

/** The isolation level that a transaction names; `unknown` if it is set in a way that outlives the transaction. */
function levelOf({ precedingTexts, statements }: PendingStep): string | undefined {
  const texts = [...precedingTexts, ...statements.map(({ text }) => text)]
  const naming = texts.filter((text) =>
    /\b(repeatable\s+read|serializable|read\s+(un)?committed|transaction_isolation)\b/i.test(text),
  )
  if (naming.some((text) => !/^\s*(begin|start\s+transaction|set\s+transaction)\b/i.test(text)))
    return naming.some((text) => /^\s*(set|alter|reset)\b|set_config/i.test(text)) ? 'unknown' : undefined
  return naming.at(-1)
}

function readsOf(access: Access): Read[] {
  const { step, answeredAt, shape, result, transaction } = access
  if (result.error || !shape) return []
  return shape.reads.map((read) => {
    const newest = answeredAt === step ? step : answeredAt + 0.5
    const seesUntil = transaction.snapshot ?? (read.locks && !read.isNested ? newest : step)
    return { ...read, keys: read.keys ?? keysInResult(read, result), access, seesUntil }
  })
}

function unclearWritesOf({ footprint, shape }: Access): string[] {
  return shape?.write ? [] : [...footprint.inserts, ...footprint.changes].map(({ table }) => table)
}

function writesOf(access: Access): Write[] {
  const { shape, transaction } = access
  if (!shape?.write || transaction.committed === undefined || writtenBy(access) === 0) return []
  return [{ ...shape.write, access, committed: transaction.committed }]
}

/** Tables of which some unit read all rows and got one, and into which no unit inserted. */
function singleRowTablesOf(accesses: readonly Access[], reads: readonly Read[]): ReadonlySet<string> {
  const added = new Set(accesses.flatMap(({ footprint }) => footprint.inserts.map(({ table }) => table)))
  const alone = reads.filter(
    ({ where, isCut, isPlain, isNested, locks, access }) =>
      where === undefined && !isCut && isPlain && !isNested && !locks && access.result.rowCount === 1,
  )
  return new Set(alone.flatMap(({ table }) => (added.has(table) ? [] : table)))
}

/** The number of rows that a statement wrote, as the server counts them. */
export function writtenBy({ result }: Access): number {
  const { command, count } = countOf(result)
  return command === 'SELECT' ? 0 : count
}
