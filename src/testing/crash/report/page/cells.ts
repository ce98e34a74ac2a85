import { showStatement } from '../../../explore/report/printout.js'
import { COLUMNS, type Column, columnOf, type Fault, type Place } from '../../fault.js'
import type { StatementLine } from '../../story.js'
import { tableOf } from '../printout.js'
import type { CrashPoint, CrashReport } from '../report.js'

/** The points of one column at one place. */
export interface Cell {
  /** In the address: `crash-after-3`. */
  readonly id: string
  readonly column: Column
  readonly place: Place
  readonly points: readonly CrashPoint[]
}

/** Before a statement, or after it. */
export interface PlaceRow {
  /** `after-3`. */
  readonly id: string
  readonly place: Place
  /** One for each of the columns; undefined: nothing was done here. */
  readonly cells: readonly (Cell | undefined)[]
}

/** A statement of the run, with the places around it. */
export interface StatementRows {
  readonly number: number
  readonly statement: string
  readonly rows: readonly PlaceRow[]
}

/** The points by statement, side and column. */
export interface Matrix {
  readonly columns: readonly Column[]
  readonly statements: readonly StatementRows[]
}

/** As much of a statement as the page shows. */
export const MAX_STATEMENT = 600

export const isFailed = ({ verdict }: CrashPoint): boolean => verdict === 'failed'

const idOf = (column: Column, { side, statement }: Place): string =>
  `${column.replace(' ', '-')}-${side}-${statement}`

export const cellId = (fault: Fault): string => idOf(columnOf(fault), fault)

export function matrixOf({ points, modes }: CrashReport): Matrix {
  const columns = columnsOf(points, modes)
  const statements = new Map<number, PlaceRow[]>()
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

/** Those that were asked for, and that of a replay, which need not be among them. A replay has no use for the others. */
function columnsOf(points: readonly CrashPoint[], modes: readonly Column[]): readonly Column[] {
  const used = points.flatMap(({ fault }) => (fault ? [columnOf(fault)] : []))
  return COLUMNS.filter((one) => used.includes(one) || (used.length > 1 && modes.includes(one)))
}

function rowOf(
  { side, statement }: Place,
  columns: readonly Column[],
  cells: ReadonlyMap<Column, readonly CrashPoint[]>,
): PlaceRow {
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

/** The statement that a point is at, as its story has it. */
export function lineAt({ fault, story }: CrashPoint): StatementLine | undefined {
  return story.find(
    (line): line is StatementLine =>
      line.kind === 'statement' && line.who.startsWith('run') && line.number === fault?.statement,
  )
}

function statementOf(rows: readonly PlaceRow[]): string {
  const points = rows.flatMap(({ cells }) => cells.flatMap((cell) => cell?.points ?? []))
  const line = points.map(lineAt).find((one) => one !== undefined)
  return line ? showStatement(line.text, line.values, MAX_STATEMENT) : (points[0]?.statement ?? '')
}
