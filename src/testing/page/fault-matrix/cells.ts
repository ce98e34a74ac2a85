import { COLUMNS, type Column, columnOf, type Fault, type Place } from '../../crash/fault.js'
import { tableOf } from '../../crash/report/printout.js'
import type { CrashPoint, CrashReport } from '../../crash/report/report.js'
import type { StatementLine } from '../../crash/story.js'
import { showStatement } from '../../explore/report/printout.js'

/** The points of one column at one place. */
export interface Cell {
  /** The id in the page's address: `crash-after-3`. */
  readonly id: string
  readonly column: Column
  readonly place: Place
  readonly points: readonly CrashPoint[]
}

/** The points before a statement, or those after it. */
export interface SideRow {
  /** `after-3`. */
  readonly id: string
  readonly place: Place
  /** One for each column. Undefined: this column has no point here. */
  readonly cells: readonly (Cell | undefined)[]
}

/** A statement of the run, with the points before and after it. */
export interface StatementRows {
  readonly number: number
  readonly statement: string
  readonly rows: readonly SideRow[]
}

/** The points by statement, side and column. */
export interface Matrix {
  readonly columns: readonly Column[]
  readonly statements: readonly StatementRows[]
}

/** The maximum length of a statement. */
const MAX_STATEMENT = 600

export const isFailed = ({ verdict }: CrashPoint): boolean => verdict === 'failed'

const idOf = (column: Column, { side, statement }: Place): string =>
  `${column.replace(' ', '-')}-${side}-${statement}`

export const cellId = (fault: Fault): string => idOf(columnOf(fault), fault)

export function matrixOf({ points, modes }: CrashReport): Matrix {
  const columns = columnsOf(points, modes)
  const statements = new Map<number, SideRow[]>()
  for (const { cells } of tableOf(points)) {
    const place = [...cells.values()].flat()[0]?.fault
    if (!place) continue
    const row = rowOf(place, columns, cells)
    statements.set(place.statement, [...(statements.get(place.statement) ?? []), row])
  }
  return {
    columns,
    statements: [...statements].map(([number, rows]) => ({ number, statement: statementOf(rows), rows })),
  }
}

/** The modes that the options name, and that of a replay. A replay shows no other column. */
function columnsOf(points: readonly CrashPoint[], modes: readonly Column[]): readonly Column[] {
  const used = points.flatMap(({ fault }) => (fault ? [columnOf(fault)] : []))
  return COLUMNS.filter((one) => used.includes(one) || (used.length > 1 && modes.includes(one)))
}

function rowOf(
  { side, statement }: Place,
  columns: readonly Column[],
  cells: ReadonlyMap<Column, readonly CrashPoint[]>,
): SideRow {
  const place = { side, statement }
  return {
    id: `${side}-${statement}`,
    place,
    cells: columns.map((column) => {
      const points = cells.get(column) ?? []
      return points.length > 0 ? { id: idOf(column, place), column, place, points } : undefined
    }),
  }
}

/** The statement of the point, from its story. */
export function lineAt({ fault, story }: CrashPoint): StatementLine | undefined {
  return story.find(
    (line): line is StatementLine =>
      line.kind === 'statement' && line.who.startsWith('run') && line.number === fault?.statement,
  )
}

function statementOf(rows: readonly SideRow[]): string {
  const points = rows.flatMap(({ cells }) => cells.flatMap((cell) => cell?.points ?? []))
  const line = points.map(lineAt).find((one) => one !== undefined)
  return line ? showStatement(line.text, line.values, MAX_STATEMENT) : (points[0]?.statement ?? '')
}
