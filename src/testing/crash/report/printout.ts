import { showResult, showStatement } from '../../explore/report/printout.js'
import { count } from '../count.js'
import type { CrashMode, Fault } from '../fault.js'
import type { StatementLine, StoryLine } from '../story.js'
import { FROM_THE_START, NOTHING_TO_DO } from './paths.js'
import type { CrashPoint, CrashReport, RecoveryPath } from './report.js'

/** Where something was done, in words. */
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

/** What happened, a line each. */
export function showStory(story: readonly StoryLine[]): string {
  const rows = story.map((line) =>
    line.kind === 'event'
      ? line
      : { ...line, shown: showStatement(line.text, line.values), after: showEffect(line) },
  )
  const statements = rows.filter((row) => row.kind === 'statement')
  const whoWidth = Math.max(0, ...statements.map(({ who }) => who.length))
  const textWidth = Math.max(0, ...statements.map(({ shown }) => shown.length))
  return rows
    .map((row) =>
      row.kind === 'event'
        ? `  ${row.isFault ? '✕' : '·'} ${row.text}`
        : `  ${row.who.padEnd(whoWidth)} ${String(row.number).padStart(2)}  ${row.shown.padEnd(textWidth)}  ${row.after}`.trimEnd(),
    )
    .join('\n')
}

/** One point in full. */
export function showPoint(point: CrashPoint): string {
  return [
    showPlace(point),
    showStory(point.story),
    ...(point.failure ? point.failure.message.split('\n').map((line) => `  ${line}`) : []),
    ...(point.fault ? [`  Replay: DIBS_REPLAY=${point.replay}`] : []),
  ].join('\n')
}

/** Of the points of one mode at one place: how they went. */
export function showCell(points: readonly CrashPoint[]): string {
  const failed = points.filter(({ verdict }) => verdict === 'failed')
  if (points.length === 0) return '-'
  if (points.length === 1) return failed.length > 0 ? 'FAILS' : 'ok'
  return failed.length > 0 ? `${failed.length}/${points.length} FAIL` : `${points.length} ok`
}

export interface TableRow {
  readonly place: string
  readonly statement: string
  readonly cells: ReadonlyMap<CrashMode, readonly CrashPoint[]>
}

/** The points by place and mode. */
export function tableOf({ points, modes }: Pick<CrashReport, 'points' | 'modes'>): readonly TableRow[] {
  const faulty = points.filter((point): point is CrashPoint & { fault: Fault } => point.fault !== null)
  const places = new Map<string, (CrashPoint & { fault: Fault })[]>()
  for (const point of faulty.toSorted(byPlace)) {
    const place = `${point.fault.side} ${point.fault.statement}`
    places.set(place, [...(places.get(place) ?? []), point])
  }
  return [...places].map(([place, here]) => ({
    place,
    statement: here[0]?.statement ?? '',
    cells: new Map(modes.map((mode) => [mode, here.filter(({ fault }) => fault.mode === mode)])),
  }))
}

export const byPlace = ({ fault: a }: { fault: Fault }, { fault: b }: { fault: Fault }): number =>
  a.statement - b.statement || (a.side === b.side ? 0 : a.side === 'before' ? -1 : 1)

function showTable(report: Pick<CrashReport, 'points' | 'modes'>): string {
  const head = ['point', ...report.modes, 'statement']
  const rows = tableOf(report).map(({ place, statement, cells }) => [
    place,
    ...report.modes.map((mode) => showCell(cells.get(mode) ?? [])),
    place.startsWith('before') ? statement : '',
  ])
  const widths = head.map((_, i) => Math.max(...[head, ...rows].map((row) => row[i]?.length ?? 0)))
  return [head, ...rows]
    .map((row) => `  ${row.map((cell, i) => cell.padEnd(widths[i] ?? 0)).join('  ')}`.trimEnd())
    .join('\n')
}

/** More would be read by nobody; the report has them all. */
const MOST_PATHS = 6
const MOST_NAMES = 8

/** Some of them by name, and how many more. */
export function showSome(names: readonly string[]): string {
  const left = names.length - MOST_NAMES
  return [...names.slice(0, MOST_NAMES), ...(left > 0 ? [`${left} more`] : [])].join(', ')
}

/** What recovery does without being needed. */
const AS_EVER: Readonly<Record<string, string>> = {
  [FROM_THE_START]: 'as on fresh data',
  [NOTHING_TO_DO]: 'as after a run without a fault',
}

function showPaths({ paths, points }: Pick<CrashReport, 'paths' | 'points'>): string {
  const isOwn = ({ name }: RecoveryPath): boolean =>
    points.some(({ path, entersRecovery }) => path === name && entersRecovery)
  const own = paths.filter(isOwn)
  const idle = points.filter(({ fault, entersRecovery }) => fault && !entersRecovery)
  const places = (name: string): string[] =>
    idle.filter(({ path }) => path === name).map(({ fault }) => `${fault?.side} ${fault?.statement}`)
  return [
    'Ways that recovery took',
    ...own
      .slice(0, MOST_PATHS)
      .flatMap(({ name, statements, points: of }) => [
        `  ${name}, after ${count(of, 'point')}:`,
        ...statements.map((statement) => `    ${statement}`),
      ]),
    ...(own.length > MOST_PATHS ? [`  and ${own.length - MOST_PATHS} more`] : []),
    ...[...new Set(idle.map(({ path }) => path))].map(
      (name) => `  ${name}, ${AS_EVER[name]}: ${showSome([...new Set(places(name))])}`,
    ),
  ].join('\n')
}

/** Other points that failed, by what went wrong there. */
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

/** The whole report as text: first what went wrong, in full once; then all points. */
export function printReport(report: Omit<CrashReport, 'printout'>): string {
  const { summary, points, notes } = report
  const [first, ...others] = points.filter(({ verdict }) => verdict === 'failed')
  return [
    summary,
    ...(first ? [showPoint(first)] : []),
    ...(others.length > 0 ? [showOthers(others)] : []),
    ...(points.length > 1 ? [showTable(report), showPaths(report)] : []),
    ...notes.map((note) => `Note: ${note}`),
  ].join('\n\n')
}
