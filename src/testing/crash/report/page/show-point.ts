import { clip } from '../../../explore/report/printout.js'
import { type Html, html } from '../../../page/html.js'
import { showReplay } from '../../../page/report-head.js'
import type { CrashPoint } from '../report.js'
import type { Context } from './context.js'
import { PATH_SIGNS, pointName, RUN_WORDS } from './words.js'

/** As much of a failure as fits in a line. */
const MAX_LINE = 120

/** All that is known of a point. */
export function showPoint(point: CrashPoint, context: Context): Html {
  const { replay, fault, failure } = point
  return html`<div class="point"${fault !== null && html` id="${replay}"`}>${failure && html`<p class="failure"><b>${failure.kind}</b> <span>${failure.message}</span></p>`}
<div class="known"><dl class="facts">${factsOf(point, context).map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
${fault !== null && html`<p class="replay">${showReplay(`${replay}@${context.identity}`, `replay=${replay}`)}</p>`}</div>
${context.stories.get(point) ?? html`<p class="left-out">Its story is not on this page, to keep it small. A replay tells it, and <code>report.points</code> has it.</p>`}</div>`
}

type Fact = readonly [name: string, value: Html | string]

function factsOf(point: CrashPoint, context: Context): readonly Fact[] {
  const { run, recoveries, waited, lateWrites, repeatedEffects, agrees } = point
  return [
    ['run', RUN_WORDS[run]],
    ['recoveries', String(recoveries)],
    ...(recoveries > 0 ? [['way of recovery', showPath(point, context)] as const] : []),
    ...(waited === undefined ? [] : [['waited', waited] as const]),
    ...lateWrites.map(
      ({ table, row }): Fact => ['late write', html`${table} <code>${JSON.stringify(row)}</code>`],
    ),
    ...(repeatedEffects.length > 0 ? [['repeated effects', repeatedEffects.join(', ')] as const] : []),
    ...(agrees === undefined
      ? []
      : [
          ['a real process', agrees ? 'did the same as one within this process' : '✕ did otherwise'] as const,
        ]),
  ]
}

const showPath = ({ path, entersRecovery }: CrashPoint, { ways }: Context): Html =>
  entersRecovery && ways.has(path)
    ? html`<a href="#way=${path}">${path}</a>`
    : html`${path} ${PATH_SIGNS[path]}`

/** A point among others of its cell: a line, with the rest below it. */
export function showAmongOthers(point: CrashPoint, context: Context, isOpen: boolean): Html {
  const { replay, path, verdict, failure } = point
  const sign = html`<span class="sign ${verdict}">${failure ? '✕' : '✓'}</span>`
  const what =
    failure && html` <span class="what">${clip(failure.message.split('\n')[0] ?? '', MAX_LINE)}</span>`
  const way = html` <span class="path">${PATH_SIGNS[path] ?? path}</span>`
  return context.stories.has(point)
    ? html`<details${isOpen && html` open`}><summary>${sign} <b>${pointName(point)}</b>${what}${way}</summary>${showPoint(point, context)}</details>\n`
    : html`<p class="untold" id="${replay}">${sign} <code>${replay}</code>${what}${way}</p>\n`
}
