import { count } from '../../count.js'
import { showResult, showStatement } from '../../explore/report/printout.js'
import { COLUMNS, type Column, columnOf, type Fault, type Place } from '../fault.js'
import type { StatementLine, StoryLine } from '../story.js'
import { FROM_THE_START, NOTHING_TO_DO } from './recovery-path-names.js'
import type { CrashPoint, CrashReport } from './report.js'

/** Describes a fault and its point. */
export function showPlace({ fault, statement }: Pick<CrashPoint, 'fault' | 'statement'>): string {
  if (!fault) return 'With nothing done to it'
  const { mode, side, code, signal, again } = fault
  const what = code ?? signal ?? ''
  const second = again ? `, and again ${again.side} statement ${again.statement} of its recovery` : ''
  return `${mode}${what && ` ${what}`} ${side} statement ${fault.statement}${second}: ${statement}`
}

function showEffect({ effect, waitedFor }: StatementLine): string {
  const waited = waitedFor ? `.. waits for ${waitedFor.join(' and ')}  ` : ''
  switch (effect.kind) {
    case 'done': {
      const shown = showResult(effect.result)
      return `${waited}${shown && `-> ${shown}`}`
    }
    case 'unseen': {
      const shown = showResult(effect.result)
      return `${waited}-> ${shown || 'done'}, unseen`
    }
    case 'injected':
      return `-> ERROR ${effect.code} ${effect.message}`
    case 'waits':
      return waited.trimEnd()
    case 'lost':
      return `${waited}-> its connection is gone`
    case 'not sent':
      return '-> not sent'
  }
}

const LINE_WIDTH = 78
/** Longer statements are cut in a printout. The report has them whole. */
const MAX_STATEMENT = 400

/** Shows a story, one line a statement or event. A long statement is wrapped, since its end often matters most. */
export function showStory(story: readonly StoryLine[]): string {
  const rows = story.map((line) =>
    line.kind === 'event'
      ? line
      : {
          ...line,
          shown: wrap(showStatement(line.text, line.values, MAX_STATEMENT), LINE_WIDTH),
          after: showEffect(line),
        },
  )
  const statements = rows.filter((row) => row.kind === 'statement')
  const whoWidth = Math.max(0, ...statements.map(({ who }) => who.length))
  const textWidth = Math.max(0, ...statements.flatMap(({ shown }) => shown.map((part) => part.length)))
  return rows
    .flatMap((row) => {
      if (row.kind === 'event') return [`  ${row.isFault ? '✕' : '·'} ${row.text}`]
      const [first = '', ...rest] = row.shown
      const head = `  ${row.who.padEnd(whoWidth)} ${String(row.number).padStart(2)}  `
      return [
        `${head}${first.padEnd(textWidth)}  ${row.after}`.trimEnd(),
        ...rest.map((part) => `${' '.repeat(head.length)}  ${part}`),
      ]
    })
    .join('\n')
}

/** Breaks a text between words, into lines of at most `width` characters. */
function wrap(text: string, width: number): readonly string[] {
  const lines: string[] = []
  for (const word of text.split(' ')) {
    const line = lines.at(-1)
    if (line !== undefined && line.length + word.length < width) lines[lines.length - 1] = `${line} ${word}`
    else lines.push(word)
  }
  return lines
}

/** Shows one point in full. */
export function showPoint(point: CrashPoint, identity: string): string {
  return [
    showPlace(point),
    showStory(point.story),
    ...(point.failure ? `Wrong: ${point.failure.message}`.split('\n').map((line) => `  ${line}`) : []),
    ...(point.fault ? [`  Replay: DIBS_REPLAY=${point.replay}@${identity}`] : []),
  ].join('\n')
}

/** Shows the verdict of the points in one cell of the table. */
export function showCell(points: readonly CrashPoint[]): string {
  const failed = points.filter(({ verdict }) => verdict === 'failed')
  if (points.length === 0) return '-'
  if (points.length === 1) return failed.length > 0 ? 'FAILS' : 'ok'
  return failed.length > 0 ? `${failed.length}/${points.length} FAIL` : `${points.length} ok`
}

export interface TableRow {
  readonly place: Place
  readonly statement: string
  readonly cells: ReadonlyMap<Column, readonly CrashPoint[]>
}

/** Groups the points by place and column. */
export function tableOf(points: readonly CrashPoint[]): readonly TableRow[] {
  const faulty = points.filter((point): point is CrashPoint & { fault: Fault } => point.fault !== null)
  const rows = new Map<string, { place: Place; statement: string; cells: Map<Column, CrashPoint[]> }>()
  for (const point of faulty.toSorted(byPlace)) {
    const { fault, statement } = point
    const key = `${fault.side} ${fault.statement}`
    const row = rows.get(key) ?? { place: fault, statement, cells: new Map() }
    row.cells.set(columnOf(fault), [...(row.cells.get(columnOf(fault)) ?? []), point])
    rows.set(key, row)
  }
  return [...rows.values()]
}

export const byPlace = ({ fault: a }: { fault: Fault }, { fault: b }: { fault: Fault }): number =>
  a.statement - b.statement || (a.side === b.side ? 0 : a.side === 'before' ? -1 : 1)

function showTable(points: readonly CrashPoint[]): string {
  const table = tableOf(points)
  const columns = COLUMNS.filter((column) => table.some(({ cells }) => cells.has(column)))
  const head = ['point', ...columns, 'statement']
  const rows = table.map(({ place, statement, cells }, i) => [
    `${place.side} ${place.statement}`,
    ...columns.map((column) => showCell(cells.get(column) ?? [])),
    // A statement is shown once for its two places.
    table[i - 1]?.place.statement === place.statement ? '' : statement,
  ])
  const widths = head.map((_, i) => Math.max(...[head, ...rows].map((row) => row[i]?.length ?? 0)))
  return [head, ...rows]
    .map((row) => `  ${row.map((cell, i) => cell.padEnd(widths[i] ?? 0)).join('  ')}`.trimEnd())
    .join('\n')
}

/** A printout shows no more than these, so that it stays readable. The report has them all. */
const MAX_PATHS = 3
const MAX_NAMES = 8

/** Shows the first names, and the number of the others. */
export function showSome(names: readonly string[]): string {
  const left = names.length - MAX_NAMES
  return [...names.slice(0, MAX_NAMES), ...(left > 0 ? [`${left} more`] : [])].join(', ')
}

/** The paths on which the recovery has nothing to recover. */
const USUAL_PATHS: Readonly<Record<string, string>> = {
  [FROM_THE_START]: 'as on fresh data',
  [NOTHING_TO_DO]: 'as after a run without a fault',
}

function showPaths({ paths }: Pick<CrashReport, 'paths'>): string {
  const others = paths.filter(({ name }) => !(name in USUAL_PATHS)).toSorted((a, b) => b.points - a.points)
  return [
    'Ways that recovery took',
    ...paths.flatMap(({ name, points }) =>
      name in USUAL_PATHS && points > 0 ? [`  ${count(points, 'point')}: ${name}, ${USUAL_PATHS[name]}`] : [],
    ),
    ...others
      .slice(0, MAX_PATHS)
      .flatMap(({ name, statements, points }) => [
        `  ${count(points, 'point')}: ${name}`,
        ...statements.map((statement) => `    ${statement}`),
      ]),
    ...(others.length > MAX_PATHS ? [`  and ${others.length - MAX_PATHS} more of its own`] : []),
  ].join('\n')
}

/** Shows the other points that failed, grouped by message. */
function showOthers(others: readonly CrashPoint[]): string {
  const byMessage = new Map<string, string[]>()
  for (const { replay, failure } of others) {
    const [message = ''] = failure?.message.split('\n') ?? []
    byMessage.set(message, [...(byMessage.get(message) ?? []), replay])
  }
  return [
    'Also',
    ...[...byMessage].map(([message, replays]) => `  ${message}\n    ${showSome(replays)}`),
  ].join('\n')
}

/** Prints the whole report: the first failure in full, then all points. */
export function printReport(report: Omit<CrashReport, 'printout'>): string {
  const { summary, points, notes, identity } = report
  const [first, ...others] = points.filter(({ verdict }) => verdict === 'failed')
  // A replay has only its own point after the run without a fault. It is shown in full, also if it passed.
  const [, replayed] = points.length === 2 ? points : []
  const shown = first ?? replayed
  return [
    summary,
    ...(shown ? [showPoint(shown, identity)] : []),
    ...(others.length > 0 ? [showOthers(others)] : []),
    ...(points.length > 1 ? [showTable(points), showPaths(report)] : []),
    ...notes.map((note) => `Note: ${note}`),
  ].join('\n\n')
}
