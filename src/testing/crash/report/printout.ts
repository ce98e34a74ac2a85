import { showResult, showStatement } from '../../explore/report/printout.js'
import type { CrashMode, Fault } from '../fault.js'
import type { StatementLine, StoryLine } from '../story.js'
import type { CrashPoint, CrashReport } from './report.js'

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
    ...(point.fault ? [`  Replay: ${point.replay}`] : []),
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

function showPaths({ paths, points }: Pick<CrashReport, 'paths' | 'points'>): string {
  const own = paths.filter(({ name }) => points.some((point) => point.path === name && point.entersRecovery))
  const idle = points.filter(({ fault, entersRecovery }) => fault && !entersRecovery)
  return [
    'Ways that recovery took:',
    ...own.flatMap(({ name, statements, points: of }) => [
      `  ${name}, after ${of} ${of === 1 ? 'point' : 'points'}`,
      ...statements.map((statement) => `    ${statement}`),
    ]),
    ...(idle.length > 0
      ? [
          `  Nothing of its own after ${idle.length} of ${points.length - 1}: ${[...new Set(idle.map(({ fault, path }) => `${fault?.side} ${fault?.statement} (${path})`))].join(', ')}`,
        ]
      : []),
  ].join('\n')
}

/** The whole report as text: first what went wrong, in full once; then all points. */
export function printReport(report: Omit<CrashReport, 'printout'>): string {
  const { summary, points, notes } = report
  const failed = points.filter(({ verdict }) => verdict === 'failed')
  const [first, ...others] = failed
  const more = others.map(({ replay, failure }) => `  ${replay}: ${failure?.message.split('\n')[0]}`)
  return [
    summary,
    ...(first ? [showPoint(first)] : []),
    ...(more.length > 0 ? [['Also:', ...more].join('\n')] : []),
    ...(points.length > 1 ? [showTable(report), showPaths(report)] : []),
    ...notes.map((note) => `Note: ${note}`),
  ].join('\n\n')
}
