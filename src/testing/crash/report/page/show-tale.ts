import { showEffect } from '../../../explore/report/page/show-effect.js'
import { showResult, showStatement } from '../../../explore/report/printout.js'
import { actorOf } from '../../../explore/schedule/trace.js'
import { type Html, html } from '../../../page/html.js'
import { showSql } from '../../../page/show-sql.js'
import type { StatementLine } from '../../story.js'
import type { CrashPoint } from '../report.js'
import type { Folded } from './fold.js'
import { layOutTale, type TaleRow } from './tale.js'

/** As much of a statement as a line shows. */
const MAX_TEXT = 320

/**
 * What happened at a point, line by line, time going down: `run` on the left rail, recoveries on the right one.
 *
 * @param usual what a run without a fault did
 */
export function showTale({ story, failure }: CrashPoint, usual?: readonly string[]): Html {
  const rows = layOutTale(story, usual)
  return html`<ol class="tale color-0">
${rows.map((row, i) => showRow(row, rows[i + 1]))}<li class="end ${failure ? 'bad' : 'good'}">${failure ? html`✕ ${END_WORDS[failure.kind]}` : '✓ what is left is right'}</li>
</ol>`
}

/** What is wrong in the end, in short: the message says it all. */
const END_WORDS: Readonly<Record<NonNullable<CrashPoint['failure']>['kind'], string>> = {
  stuck: 'and there it hangs',
  'late write': 'a late write',
  'repeated effect': 'an effect took place more than once',
  invariant: 'what is left is wrong',
  progress: 'something was left undone',
  waited: 'recovery had to wait',
  failed: 'it failed',
}

function showRow(row: TaleRow, next: TaleRow | undefined): Html {
  const rails = row.rails.map((rail, lane) => rail && ` ${rail}-${lane}`)
  const kind = row.kind === 'statement' ? `is-${row.line.effect.kind.replace(' ', '-')}` : row.kind
  const isNext = next?.lane === row.lane && next.owner !== row.owner
  const ends = row.kind === 'fault' && (isNext || !next?.rails[row.lane])
  return html`<li class="${kind} lane-${row.lane} color-${row.color}${rails}${ends && ' ends'}">${showContent(row)}</li>
`
}

function showContent(row: TaleRow): Html {
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
  return html`<b class="nth">${number}</b><code>${showSql(showStatement(text, values, MAX_TEXT))}${connection && html` <i class="other">connection ${connection}</i>`}</code>${showWaited(line)}${showOutcome(line)}`
}

const showWaited = ({ waitedFor, effect }: StatementLine): Html | false | undefined =>
  waitedFor !== undefined && effect.kind !== 'waits' && showEffect({ kind: 'waits', for: waitedFor })

/** What became of it. What the explorer knows too is told as there. */
function showOutcome({ effect }: StatementLine): Html | undefined {
  switch (effect.kind) {
    case 'not sent':
      return html`<span class="effect standing">not sent</span>`
    case 'unseen':
      return html`<span class="effect">→ ${showResult(effect.result) || 'done'} <i class="unseen">unseen</i></span>`
    case 'injected':
      return html`<span class="effect bad">✕ ERROR ${effect.code} ${effect.message}</span>`
    default:
      return showEffect(effect)
  }
}
