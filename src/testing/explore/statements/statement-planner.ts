import type { Plan, PlannedStep, Planner, SessionView } from '../../gate/plan.js'
import { query, sync } from '../../wire/frontend.js'
import type { Execution, Request } from '../../wire/request.js'
import { IMPLICIT_COMMIT } from '../schedule/trace.js'
import { parseStatements, type Statement } from './parse-statements.js'
import type { SchemaCatalog } from './schema-catalog.js'
import type { StatementKind } from './statement-kind.js'

/** Statements that neither read nor lock. Each joins the step of the next statement. */
const QUIET: ReadonlySet<StatementKind> = new Set(['begin', 'savepoint', 'setting'])
const ENDS_TRANSACTION: ReadonlySet<StatementKind> = new Set(['commit', 'rollback'])
const RELEASES_LOCKS: ReadonlySet<StatementKind> = new Set(['commit', 'rollback', 'rollback-to', 'whole'])

interface StatementPlannerOptions {
  /**
   * True: an autocommit statement is two steps, its work and its COMMIT. Two such statements can overlap, so that each takes
   * its snapshot before the other commits. No order of whole statements would show that.
   */
  readonly splits: boolean
  /** True at SERIALIZABLE, where the COMMIT of a read matters too. */
  readonly readsCount: boolean
}

/** Splits each request into the steps that the explorer schedules. */
export class StatementPlanner implements Planner {
  readonly #catalog: SchemaCatalog
  readonly #options: StatementPlannerOptions
  readonly #unsplittable = new Set<string>()

  constructor(catalog: SchemaCatalog, options: StatementPlannerOptions) {
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
          commitsOwnWork:
            session.status === 'I' &&
            statements.some(({ kind }) => ENDS_TRANSACTION.has(kind)) &&
            statements.some(({ kind }) => kind === 'work'),
          endsTransaction:
            !isSplit && (session.status === 'I' || statements.some(({ kind }) => RELEASES_LOCKS.has(kind))),
        },
        ...(isSplit ? [COMMIT] : []),
      ],
      isSplit,
      opensSavepoint,
    })
    if (statements.every((statement) => this.#isQuiet(statement, session)))
      return { steps: [], isSplit: false, opensSavepoint, ...beginning(request, statements) }
    const pieces = piecesOf(request, statements)
    const isControlled = statements.some(({ kind }) => kind === 'begin' || ENDS_TRANSACTION.has(kind))
    const isSplit = session.status === 'I' && !isControlled && this.#isSplittable(request, statements)
    // `insert …; begin; …`: the statement before BEGIN shares its transaction only if both are in one message.
    const startsImplicitTransaction =
      session.status === 'I' && isControlled && statements[0]?.kind !== 'begin'
    const isOnePiece =
      pieces.length < 2 ||
      startsImplicitTransaction ||
      hasStatementAfterEnd(statements) ||
      statements.some(copiesIn)
    if (isOnePiece) return whole(isSplit)
    if (session.status === 'I' && !isControlled && !isSplit) return whole(false)
    return { steps: [...pieces, ...(isSplit ? [COMMIT] : [])], isSplit, opensSavepoint }
  }

  #isQuiet({ kind }: Statement, { status, hasSavepoint }: SessionView): boolean {
    if (QUIET.has(kind)) return true
    if (!ENDS_TRANSACTION.has(kind)) return false
    // COMMIT and ROLLBACK outside a transaction do nothing. A failed transaction has released its locks already, unless a
    // savepoint keeps those that were taken before it.
    return status === 'I' || (status === 'E' && !hasSavepoint)
  }

  #isSplittable(request: Request, statements: readonly Statement[]): boolean {
    if (!this.#options.splits || this.#unsplittable.has(request.text)) return false
    // Such statements behave differently inside a transaction block, so the explorer must not put one around them.
    if (statements.some(({ kind, needsBlock }) => kind === 'whole' || kind === 'savepoint' || needsBlock))
      return false
    return statements.some(
      (statement) =>
        statement.kind !== 'read' || this.#options.readsCount || this.#catalog.mayWrite(statement), // guard: explorer.locking-read-step
    )
  }
}

/** The COMMIT that PostgreSQL does by itself at the end of a statement outside a transaction. */
const COMMIT: PlannedStep = { text: IMPLICIT_COMMIT, sends: 'commit', endsTransaction: true }

function beginning(
  { isSimple }: Request,
  statements: readonly Statement[],
): Pick<Plan, 'begins' | 'beginsAlone'> {
  const begins = statements[0]?.kind === 'begin'
  return { begins, beginsAlone: begins && isSimple && statements.length === 1 }
}

/** True if a statement other than BEGIN follows a COMMIT or ROLLBACK in one message. Only the server knows its transaction. */
function hasStatementAfterEnd(statements: readonly Statement[]): boolean {
  return statements.some(
    ({ kind }, i) =>
      ENDS_TRANSACTION.has(kind) && i + 1 < statements.length && statements[i + 1]?.kind !== 'begin',
  )
}

/** True for a COPY whose data follows on the wire after this message. */
const copiesIn = ({ text }: Statement): boolean =>
  /^\s*copy\b[\s\S]*\bfrom\s+stdin\b/i.test(text.replace(/\/\*[\s\S]*?\*\/|--.*$/gm, ' '))

/** One statement, and the bytes that go to the server for it. */
interface Sent extends Pick<Execution, 'values' | 'bytes'> {
  readonly statement: Statement
}

/** The steps of one message. Quiet statements join the step of the next statement, and those at the end join the last step. */
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

/** A quiet statement with parameters is a step of its own, so that no step has the parameters of two statements. */
const isQuiet = ({ statement, values }: Sent): boolean => QUIET.has(statement.kind) && values.length === 0

const asQuery = (statement: Statement): Sent => ({ statement, values: [], bytes: Buffer.alloc(0) })

/** The statements of a request in the extended protocol; none if one of its texts is not exactly one statement. */
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
      // Inside a transaction a Sync changes nothing. After an error the rest is not sent, as the server would skip it.
      bytes: isSimple ? query(text) : Buffer.concat([...group.map(({ bytes }) => bytes), sync()]),
    },
    endsTransaction: group.some(({ statement }) => RELEASES_LOCKS.has(statement.kind)),
    changesSchema: group.some(({ statement }) => statement.changesSchema),
  }
}
