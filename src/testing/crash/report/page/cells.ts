import { showStatement } from '../../../explore/report/printout.js'
import { type CrashMode, type Fault, MODES, type Place } from '../../fault.js'
import type { StatementLine } from '../../story.js'
import { tableOf } from '../printout.js'
import type { CrashPoint, CrashReport } from '../report.js'

/** The points of one mode at one place. */
export interface Cell {
  /** In the address: `crash-after-3`. */
  readonly id: string
  readonly mode: CrashMode
  readonly place: Place
  readonly points: readonly CrashPoint[]
}

/** Before a statement, or after it. */
export interface PlaceRow {
  /** `after-3`. */
  readonly id: string
  readonly place: Place
  /** One for each of the modes; undefined: nothing was done here. */
  readonly cells: readonly (Cell | undefined)[]
}

/** A statement of the run, with the places around it. */
export interface StatementRows {
  readonly number: number
  readonly statement: string
  readonly rows: readonly PlaceRow[]
}

/** The points by statement, side and mode. */
export interface Matrix {
  readonly modes: readonly CrashMode[]
  readonly statements: readonly StatementRows[]
}

/** As much of a statement as the page shows. */
export const MAX_STATEMENT = 600

export const isFailed = ({ verdict }: CrashPoint): boolean => verdict === 'failed'

export const cellId = ({ mode, side, statement }: Pick<Fault, keyof Place | 'mode'>): string =>
  `${mode}-${side}-${statement}`

export function matrixOf({ points, modes }: CrashReport): Matrix {
  const columns = columnsOf(points, modes)
  const statements = new Map<number, PlaceRow[]>()
  for (const { cells } of tableOf({ points, modes: columns })) {
    const place = [...cells.values()].flat()[0]?.fault
    if (!place) continue
    const row = rowOf(place, columns, cells)
    statements.set(place.statement, [...(statements.get(place.statement) ?? []), row])
  }
  return {
    modes: columns,
    statements: [...statements].map(([number, rows]) => ({ number, statement: statementOf(rows), rows })),
  }
}

/** Those that were asked for, and that of a replay, which need not be among them. A replay has no use for the others. */
function columnsOf(points: readonly CrashPoint[], modes: readonly CrashMode[]): readonly CrashMode[] {
  const used = points.flatMap(({ fault }) => (fault ? [fault.mode] : []))
  return MODES.filter((mode) => used.includes(mode) || (used.length > 1 && modes.includes(mode)))
}

function rowOf(
  { side, statement }: Place,
  modes: readonly CrashMode[],
  cells: ReadonlyMap<CrashMode, readonly CrashPoint[]>,
): PlaceRow {
  const place = { side, statement }
  const id = `${side}-${statement}`
  return {
    id,
    place,
    cells: modes.map((mode) => {
      const points = cells.get(mode) ?? []
      return points.length > 0 ? { id: cellId({ mode, ...place }), mode, place, points } : undefined
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
