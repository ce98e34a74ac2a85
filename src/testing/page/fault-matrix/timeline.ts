import type { CrashPoint } from '../../crash/report/report.js'
import type { StatementLine } from '../../crash/story.js'
import { showStatement } from '../../explore/report/printout.js'
import { actorOf } from '../../explore/schedule/trace.js'
import { type Html, html } from '../html.js'
import { showEffect } from '../show-effect.js'
import { showSql } from '../show-sql.js'
import type { Folded } from './fold-repeats.js'
import { layOutTimeline, type TimelineRow } from './timeline-layout.js'

/** The maximum length of a statement in a line. */
const MAX_TEXT = 320

/**
 * The statements and events at a point, from top to bottom: `run` on the left rail, recoveries on the right rail.
 *
 * @param baseline the statements of the run without a fault
 */
export function showTimeline({ story, failure }: CrashPoint, baseline?: readonly string[]): Html {
  const rows = layOutTimeline(story, baseline)
  return html`<ol class="timeline color-0">
${rows.map((row, i) => showRow(row, rows[i + 1]))}<li class="end ${failure ? 'bad' : 'good'}">${failure ? html`✕ ${END_WORDS[failure.kind]}` : '✓ what is left is right'}</li>
</ol>`
}

/** The failure in a few words. */
const END_WORDS: Readonly<Record<NonNullable<CrashPoint['failure']>['kind'], string>> = {
  stuck: 'and there it hangs',
  'late write': 'a late write',
  'repeated effect': 'an effect took place more than once',
  invariant: 'what is left is wrong',
  progress: 'something was left undone',
  waited: 'recovery had to wait',
  failed: 'it failed',
}

function showRow(row: TimelineRow, next: TimelineRow | undefined): Html {
  const rails = row.rails.map((rail, lane) => rail && ` ${rail}-${lane}`)
  const kind = row.kind === 'statement' ? `is-${row.line.effect.kind.replace(' ', '-')}` : row.kind
  const isNext = next?.lane === row.lane && next.owner !== row.owner
  const ends = row.kind === 'fault' && (isNext || !next?.rails[row.lane])
  return html`<li class="${kind} lane-${row.lane} color-${row.color}${rails}${ends && ' ends'}">${showContent(row)}</li>
`
}

function showContent(row: TimelineRow): Html {
  switch (row.kind) {
    case 'head':
      return html`${row.name}${row.isBack && ' goes on'}`
    case 'statement':
      return showLine(row.line)
    case 'folded':
      return showFolded(row)
    case 'fault':
      return html`<b class="nth">✕</b><span>${row.text}</span>`
    case 'event':
      return html`${row.text}`
  }
}

function showFolded({ from, to, as }: Folded): Html {
  const same = as === from ? 'the same as' : `the same as ${as} to ${as + to - from}`
  return html`<b class="nth">⋮</b>statements ${from} to ${to}, ${same} <a href="#none">with nothing done to it</a>`
}

function showLine(line: StatementLine): Html {
  const { who, number, text, values } = line
  const connection = who.slice(actorOf(who).length + 1)
  return html`<b class="nth">${number}</b><code>${showSql(showStatement(text, values, MAX_TEXT))}${connection && html` <i class="other">connection ${connection}</i>`}</code>${showWaited(line)}${showEffect(line.effect)}`
}

const showWaited = ({ waitedFor, effect }: StatementLine): Html | false | undefined =>
  waitedFor !== undefined && effect.kind !== 'waits' && showEffect({ kind: 'waits', for: waitedFor })
