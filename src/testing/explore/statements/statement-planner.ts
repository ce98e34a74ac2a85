import type { Plan, PlannedStep, Planner, SessionView } from '../../gate/plan.js'
import { query, sync } from '../../wire/frontend.js'
import type { Execution, Request } from '../../wire/request.js'
import { IMPLICIT_COMMIT } from '../schedule/trace.js'
import type { Catalog } from './catalog.js'
import { parseStatements, type Statement, type StatementKind } from './parse-statements.js'

/** They neither read nor lock: each is one with the statement after it. */
const QUIET: ReadonlySet<StatementKind> = new Set(['begin', 'savepoint', 'setting'])
const ENDS: ReadonlySet<StatementKind> = new Set(['commit', 'rollback'])
const FREES: ReadonlySet<StatementKind> = new Set(['commit', 'rollback', 'rollback-to', 'whole'])

export interface StatementPlannerOptions {
  /**
   * An autocommit statement is two steps: its work and its COMMIT. Two such statements that overlap have each taken their
   * snapshot before the other commits, which no order of whole statements can show.
   */
  readonly splits: boolean
  /** Reads leave traces that count at their COMMIT (SERIALIZABLE). */
  readonly readsCount: boolean
}

/** Makes steps of requests. */
export class StatementPlanner implements Planner {
  readonly #catalog: Catalog
  readonly #options: StatementPlannerOptions
  readonly #unsplittable = new Set<string>()

  constructor(catalog: Catalog, options: StatementPlannerOptions) {
    this.#catalog = catalog
    this.#options = options
  }

  refuseSplit(text: string): void {
    this.#unsplittable.add(text)
  }

  plan(request: Request, session: SessionView): Plan | Promise<Plan> {
    const statements = request.texts.flatMap(parseStatements)
    const unknown = statements.filter((statement) => !this.#catalog.knows(statement))
    if (unknown.length === 0) return this.#plan(request, statements, session)
    return Promise.all(unknown.map((statement) => this.#catalog.learn(statement))).then(() =>
      this.#plan(request, statements, session),
    )
  }

  #plan(request: Request, statements: readonly Statement[], session: SessionView): Plan {
    const changesSchema = statements.some((statement) => statement.changesSchema)
    const opensSavepoint = statements.some(({ kind }) => kind === 'savepoint')
    const whole = (isSplit: boolean): Plan => ({
      steps: [
        {
          text: request.text,
          sends: 'request',
          changesSchema,
          commitsItself:
            session.status === 'I' &&
            statements.some(({ kind }) => ENDS.has(kind)) &&
            statements.some(({ kind }) => kind === 'work'),
          endsTransaction:
            !isSplit && (session.status === 'I' || statements.some(({ kind }) => FREES.has(kind))),
        },
        ...(isSplit ? [COMMIT] : []),
      ],
      isSplit,
      opensSavepoint,
    })
    if (statements.every((statement) => this.#isQuiet(statement, session)))
      return { steps: [], isSplit: false, opensSavepoint, ...beginning(request, statements) }
    const pieces = piecesOf(request, statements)
    const isControlled = statements.some(({ kind }) => kind === 'begin' || ENDS.has(kind))
    const isSplit = session.status === 'I' && !isControlled && this.#isSplittable(request, statements)
    // `insert …; begin; …`: what comes before BEGIN shares its transaction only if it is one message.
    const isOddlyControlled = session.status === 'I' && isControlled && statements[0]?.kind !== 'begin'
    const isOnePiece =
      pieces.length < 2 || isOddlyControlled || hasTail(statements) || statements.some(copiesIn)
    if (isOnePiece) return whole(isSplit)
    if (session.status === 'I' && !isControlled && !isSplit) return whole(false)
    return { steps: [...pieces, ...(isSplit ? [COMMIT] : [])], isSplit, opensSavepoint }
  }

  #isQuiet({ kind }: Statement, { status, hasSavepoint }: SessionView): boolean {
    if (QUIET.has(kind)) return true
    if (!ENDS.has(kind)) return false
    // Outside a transaction it does nothing. A failed transaction has freed its locks when it failed, unless a savepoint
    // keeps those that were taken before it.
    return status === 'I' || (status === 'E' && !hasSavepoint)
  }

  #isSplittable(request: Request, statements: readonly Statement[]): boolean {
    if (!this.#options.splits || this.#unsplittable.has(request.text)) return false
    // Some work in a transaction block alone: in one of ours they would not fail as they should.
    if (statements.some(({ kind, needsBlock }) => kind === 'whole' || kind === 'savepoint' || needsBlock))
      return false
    return statements.some(
      (statement) =>
        statement.kind !== 'read' || this.#options.readsCount || this.#catalog.mayWrite(statement),
    )
  }
}

/** What PostgreSQL does by itself at the end of a statement outside a transaction. */
const COMMIT: PlannedStep = { text: IMPLICIT_COMMIT, sends: 'commit', endsTransaction: true }

function beginning(
  { isSimple }: Request,
  statements: readonly Statement[],
): Pick<Plan, 'begins' | 'beginsAlone'> {
  const begins = statements[0]?.kind === 'begin'
  return { begins, beginsAlone: begins && isSimple && statements.length === 1 }
}

/** What comes after COMMIT in one message is a transaction of its own, or several: only the server can tell. */
function hasTail(statements: readonly Statement[]): boolean {
  return statements.some(
    ({ kind }, i) => ENDS.has(kind) && i + 1 < statements.length && statements[i + 1]?.kind !== 'begin',
  )
}

/** Data follows it on the wire, for this message. */
const copiesIn = ({ text }: Statement): boolean =>
  /^\s*copy\b[\s\S]*\bfrom\s+stdin\b/i.test(text.replace(/\/\*[\s\S]*?\*\/|--.*$/gm, ' '))

/** One statement, and what goes to the server for it. */
interface Sent extends Pick<Execution, 'values' | 'bytes'> {
  readonly statement: Statement
}

/** The statements of one message, each with the quiet ones before it; quiet ones at the end go with the last. */
function piecesOf(request: Request, statements: readonly Statement[]): PlannedStep[] {
  const groups: Sent[][] = [[]]
  for (const sent of request.isSimple ? statements.map(asQuery) : executionsOf(request)) {
    const group = groups.at(-1) as Sent[]
    if (group.every(isQuiet)) group.push(sent)
    else groups.push([sent])
  }
  const last = groups.at(-1) as Sent[]
  if (groups.length > 1 && last.every(isQuiet)) groups.at(-2)?.push(...(groups.pop() ?? []))
  return groups.map((group) => toStep(group, request.isSimple))
}

/** With parameters it is a step of its own, so that no step has those of two. */
const isQuiet = ({ statement, values }: Sent): boolean => QUIET.has(statement.kind) && values.length === 0

const asQuery = (statement: Statement): Sent => ({ statement, values: [], bytes: Buffer.alloc(0) })

/** None if one of them is not a statement, or more. */
function executionsOf({ executions }: Request): readonly Sent[] {
  const sent: Sent[] = []
  for (const { text, values, bytes } of executions) {
    const [statement, another] = parseStatements(text)
    if (!statement || another) return []
    sent.push({ statement, values, bytes })
  }
  return sent
}

function toStep(group: readonly Sent[], isSimple: boolean): PlannedStep {
  const text = group.map(({ statement }) => statement.text).join('; ')
  return {
    text,
    sends: {
      sql: text,
      values: group.flatMap(({ values }) => values),
      // Inside a transaction a Sync changes nothing, and after an error the rest is not sent, as the server would not run it.
      bytes: isSimple ? query(text) : Buffer.concat([...group.map(({ bytes }) => bytes), sync()]),
    },
    endsTransaction: group.some(({ statement }) => FREES.has(statement.kind)),
    changesSchema: group.some(({ statement }) => statement.changesSchema),
  }
}
