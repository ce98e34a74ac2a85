import type { StepLink } from '../../explore/report/links.js'
import type { FoundRace } from '../../explore/report/report.js'
import type { StepResult } from '../../gate/result.js'
import { type Html, html } from '../html.js'
import { showEffect } from '../show-effect.js'
import { isContinued, showSql } from '../show-sql.js'
import type { Row, ScheduleLayout } from './layout.js'

/** Everything about a step. */
export function showDetail(row: Row, race: FoundRace, { rows, lanes }: ScheduleLayout): Html {
  const { index, step, number, turn, lane, isImplicit } = row
  const { unit, settings, values, options, loops, waiters, poolWaits, resumed } = step
  return html`<section class="detail" data-detail="${index}" hidden>
<h2><span class="swatch color-${lanes[lane]?.color}"></span>${unit}, step ${number} of ${rows.filter((other) => other.lane === lane).length}</h2>
${turn && html`<p class="turn">${turn}</p>`}
<pre><code>${isContinued(step.text) ? step.text : showSql(dedent(step.text))}</code></pre>
${field('Values', !isImplicit && values.length > 0 && showValues(values))}
${field('Settings before it', settings.length > 0 && settings.map((text) => html`<code>${text}</code>`))}
${field('What became of it', showOutcome(row, race))}
${field(
  'Those who had waited',
  resumed.length > 0 &&
    row.asides.map(
      (aside) =>
        aside.resumed &&
        html`<span class="line">${aside.resumed.unit} ${aside.of !== undefined && toStep(aside.of)} ${aside.resumed.effect.kind === 'waits' ? 'now' : 'goes on'} ${showEffect(aside.resumed.effect)}</span>`,
    ),
)}
${field('Waited for it before', waiters > 0 && (waiters === 1 ? 'one statement' : `${waiters} statements`))}
${field(
  'At the pool',
  Object.keys(poolWaits).length > 0 &&
    Object.entries(poolWaits).map(
      ([actor, what]) => html`<span class="line">${actor} waits for ${what}</span>`,
    ),
)}
${field('In connection with others', showLinks(index, race))}
${field(
  'Could have gone here',
  html`${options.map((option) => html`<span class="option${option === unit && ' chosen'}">${option}${option === unit && ' ✓'}</span> `)}${loops && html`<span class="line">Not ${loops}, who only asks the same again and again.</span>`}`,
)}
</section>
`
}

const field = (
  name: string,
  content: Html | string | false | readonly (Html | undefined)[] | undefined,
): Html | false => (content ? html`<h3>${name}</h3><div class="field">${content}</div>` : false)

const toStep = (index: number): Html => html`<a href="#step=${index + 1}">step ${index + 1}</a>`

function showValues(values: readonly (string | null)[]): Html {
  return html`<dl class="values">${values.map((value, i) => html`<dt>$${i + 1}</dt><dd>${value === null ? html`<i>null</i>` : html`<code>${value}</code>`}</dd>`)}</dl>`
}

function showOutcome({ index, step }: Row, { links, steps }: FoundRace): Html {
  const { effect } = step
  if (effect.kind === 'done') return showAnswer(effect.result)
  if (effect.kind !== 'waits') return html`${showEffect(effect)}`
  const freed = links.find(({ kind, to }) => kind === 'frees' && to === index)
  if (freed) return html`${showEffect(effect)} until ${toStep(freed.from)}, ${steps[freed.from]?.unit}’s`
  const goesOn = steps.some(({ unit }, i) => i > index && unit === step.unit)
  return html`${showEffect(effect)} ${goesOn ? 'until it gave up waiting' : 'and never goes on'}`
}

function showAnswer({ tag, columns, rows, rowCount, isVoid, error }: StepResult): Html {
  if (error) return html`<span class="effect bad">✕ ERROR ${error.code} ${error.message}</span>`
  const more = rowCount - rows.length
  return html`<code>${tag}</code>${
    rows.length > 0 &&
    !isVoid &&
    html`<div class="scrolls"><table>${
      columns && html`<tr>${columns.map((name) => html`<th scope="col">${name}</th>`)}</tr>`
    }${rows.map((row) => html`<tr>${row.map((value) => html`<td>${showValue(value)}</td>`)}</tr>`)}</table></div>`
  }${more > 0 && html`<span class="line">and ${more} more ${more === 1 ? 'row' : 'rows'}</span>`}`
}

const showValue = (value: string | null): Html | string =>
  value === null ? html`<i>null</i>` : value === '' ? html`<i>empty</i>` : value

/** The links of the step, except those that the other fields show. */
function showLinks(index: number, { links, steps }: FoundRace): Html[] | false {
  const lines = links.flatMap((link): Html[] => {
    const { kind, from, to, what } = link
    if (kind === 'frees' || (from !== index && to !== index)) return []
    const isTarget = to === index
    const other = isTarget ? from : to
    const words = (isTarget ? OF_TARGET : OF_SOURCE)[kind](html`${steps[other]?.unit}`, toStep(other))
    return [html`<span class="line">${words}${what && `: ${what}`}</span>`]
  })
  return lines.length > 0 && lines
}

type Words = Record<Exclude<StepLink['kind'], 'frees'>, (unit: Html, step: Html) => Html>

const OF_TARGET: Words = {
  blocks: (unit, step) => html`waits for what ${unit} has since ${step}`,
  reads: (unit, step) => html`sees what ${unit} commits in ${step}`,
  misses: (unit, step) => html`does not see what ${unit} commits only in ${step}`,
}

const OF_SOURCE: Words = {
  blocks: (unit, step) => html`${unit} waits for it from ${step} on`,
  reads: (unit, step) => html`${unit} sees this in ${step}`,
  misses: (unit, step) => html`${unit} did not see this in ${step}`,
}

/** Removes the indentation that the statement has in the source code. */
function dedent(text: string): string {
  const lines = text.trim().split('\n')
  const margins = lines
    .slice(1)
    .filter((line) => line.trim())
    .map((line) => line.search(/\S/))
  const margin = margins.length > 0 ? Math.min(...margins) : 0
  return lines.map((line, i) => (i === 0 ? line : line.slice(margin)).trimEnd()).join('\n')
}
