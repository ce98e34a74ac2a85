import type { StepResult } from '../../gate/result.js'
import type { Footprint } from '../reduce/footprint.js'
import type { Values } from '../reduce/key-values.js'
import type { Lore } from '../reduce/statement-footprint.js'
import type { PendingStep } from '../schedule/pending-step.js'
import { actorOf, type Effect, type Trace } from '../schedule/trace.js'
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

type Draft = { -readonly [K in keyof Access]: Access[K] } & { transaction: DraftTransaction }
interface DraftTransaction {
  committed?: number
  snapshot?: number
  isRepeatable: boolean
  hasSavepoint: boolean
}

/** Undefined: some step may have done what nobody can tell from outside (a function, a trigger), so that nothing is certain. */
export function historyOf({ steps, moments }: Trace, knowledge: Knowledge): History | undefined {
  const { footprintOf, lore } = knowledge
  const accesses: Draft[] = []
  const running = new Map<string, Draft>()
  const open = new Map<string, DraftTransaction>()
  const numbers: number[] = []
  const counts = new Map<string, number>()
  /** Tables as statements name them. */
  const written = new Set<string>()

  const finish = (access: Draft, effect: Effect, step: number): boolean => {
    if (effect.kind !== 'done') return effect.kind === 'waits'
    const { transaction, unit, footprint } = access
    access.done = step
    access.result = effect.result
    running.delete(unit)
    accesses.push(access)
    const { error, tag } = effect.result
    if (error && transaction.hasSavepoint) return false
    const isOver = error !== undefined || !moments[step]?.open.has(unit)
    if (footprint.ends && !isOver) return false // AND CHAIN
    if (isOver && !error && footprint.ends !== 'rollback' && tag !== 'ROLLBACK') transaction.committed = step
    if (isOver) open.delete(unit)
    return true
  }

  for (const [i, { unit, effect, resumed }] of steps.entries()) {
    const number = (counts.get(unit) ?? 0) + 1
    counts.set(unit, number)
    numbers.push(number)
    const pending = moments[i]?.pending.get(unit)
    const footprint = pending && footprintOf(pending)
    const level = pending && levelOf(pending)
    if (!footprint || footprint.everything || level === 'unknown') return undefined
    // What it did before has ended without a step of anybody's: its own timeout.
    if (running.has(unit)) return undefined
    for (const { tables } of pending.statements) for (const name of tables) written.add(name)
    const transaction = open.get(unit) ?? {
      isRepeatable: REPEATABLE.test(level ?? knowledge.isolation),
      hasSavepoint: false,
    }
    if (level !== undefined) transaction.isRepeatable = REPEATABLE.test(level)
    open.set(unit, transaction)
    const kinds = pending.statements.map(({ kind }) => kind)
    if (kinds.includes('rollback-to')) return undefined
    if (kinds.includes('savepoint') || pending.before.some((text) => /^\s*savepoint\b/i.test(text)))
      transaction.hasSavepoint = true
    const work = pending.statements.filter(
      ({ kind }) => kind === 'work' || kind === 'read' || kind === 'whole',
    )
    const isLock = work.some(({ text }) => /^lock\b/i.test(text))
    if (transaction.isRepeatable && work.length > 0 && !isLock) transaction.snapshot ??= i
    const [only, ...more] = work
    const access: Draft = {
      unit,
      actor: actorOf(unit),
      number,
      step: i,
      done: i,
      sign: JSON.stringify([work.map(({ text }) => text), pending.values]),
      values: pending.values,
      footprint,
      shape: only && more.length === 0 ? shapeOf(only, pending.values, lore) : undefined,
      result: { tag: '', rows: [], rowCount: 0 },
      transaction,
    }
    running.set(unit, access)
    for (const other of [{ unit, effect }, ...resumed]) {
      const answered = running.get(other.unit)
      if (answered && !finish(answered, other.effect, i)) return undefined
    }
  }
  // `stock` and `app.stock` may be one table or two.
  if (new Set([...written].map(bareName)).size < written.size) return undefined
  const reads = accesses.flatMap(readsOf)
  return {
    accesses,
    reads,
    writes: accesses.flatMap(writesOf),
    vague: new Set(accesses.flatMap(vagueOf)),
    singles: singlesOf(accesses, reads),
    nameOf: (step) => `${steps[step]?.unit} ${numbers[step]}`,
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
  if (result.error) return 0
  return Number(/^(?:UPDATE|DELETE|INSERT 0) (\d+)$/.exec(result.tag)?.[1] ?? 0)
}
