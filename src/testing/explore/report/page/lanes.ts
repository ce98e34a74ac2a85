import { type Html, html } from '../../../page/html.js'
import { isContinued, showSql } from '../../../page/show-sql.js'
import type { TraceStep } from '../../schedule/trace.js'
import { showStatement } from '../printout.js'
import type { FoundRace } from '../report.js'
import type { Aside, Lane, Layout, Row } from './layout.js'
import { showEffect, showResumed } from './show-effect.js'

/** As much of a statement as a box shows; the whole of it stands beside. */
const MAX_BOX_TEXT = 320

/** The schedule: a lane for each unit, a row for each step. */
export function showLanes(race: FoundRace, layout: Layout): Html {
  const { lanes, rows, endSlot } = layout
  const links = JSON.stringify(race.links.map(({ kind, from, to }) => ({ kind, from, to })))
  return html`<div class="lanes" id="lanes" style="--lanes:${lanes.length}">
<div class="band" aria-hidden="true"></div>
${lanes.map(showHead)}
${lanes.map((lane, i) => showRail(lane, i, layout))}
${showPauses(layout)}
<svg class="links" aria-hidden="true" data-links="${links}"></svg>
<ol class="rows">
${rows.map((row) => showRow(row, layout, race))}
</ol>
<div class="ending" style="${place(0, rows.length, endSlot)}"><b class="ending-name">${race.failure.name}</b> ${race.failure.message}</div>
</div>`
}

const place = (lane: number, row: number, slot: number): string =>
  `--lane:${lane};--row:${row};--slot:${slot}`

function showHead({ unit, color }: Lane, lane: number): Html {
  return html`<div class="head color-${color}" style="--lane:${lane}"><span class="swatch"></span>${unit}</div>`
}

const lastSlot = ({ slot, asides }: Row): number => asides.at(-1)?.slot ?? slot

function span(lane: number, [row, endRow]: number[], [slot, endSlot]: number[]): string {
  return `--lane:${lane};--row:${row};--end-row:${endRow};--slot:${slot};--end-slot:${endSlot}`
}

function showRail({ color, first, last }: Lane, lane: number, { rows }: Layout): Html {
  const [from, to] = [rows[first] as Row, rows[last] as Row]
  return html`<div class="rail color-${color}" style="${span(lane, [first, last + 1], [from.slot, lastSlot(to) + 1])}" aria-hidden="true"></div>`
}

/** From the step at which a statement stops to the one that lets it go on. */
function showPauses({ pauses, lanes, rows, endSlot }: Layout): Html[] {
  return pauses.map(({ kind, unit, from, to }) => {
    const lane = lanes.findIndex((one) => one.unit === unit)
    const begin = rows[from] as Row
    const end = to === undefined ? undefined : rows[to]
    // Where its own next step ended it, nobody has let it go on, and it reaches up to there.
    const aside = end?.asides.find((one) => one.resumed?.unit === unit)
    const [endRow, slot] = !end
      ? [rows.length, endSlot]
      : aside
        ? [end.index + 1, aside.slot + 1]
        : [end.index, end.slot]
    return html`<div class="pause ${kind}${!end && ' endless'}" data-pause="${from}" style="${span(lane, [from, endRow], [begin.slot, slot])}" aria-hidden="true"></div>`
  })
}

function showRow(row: Row, layout: Layout, race: FoundRace): Html {
  const { index, step, lane, slot, pool, turn, isImplicit, asides } = row
  const { unit, effect } = step
  const color = layout.lanes[lane]?.color
  const isBad = effect.kind === 'lost' || (effect.kind === 'done' && effect.result.error !== undefined)
  const classes = ['box', isImplicit && 'implicit', isBad && 'failed', turn && 'turned', effect.kind]
  return html`<li>
<span class="number" style="${place(lane, index, slot)}" aria-hidden="true">${index + 1}</span>
<span class="dot color-${color} ${effect.kind}${isBad && ' failed'}" data-dot="${index}" style="${place(lane, index, slot)}" aria-hidden="true"></span>
<button type="button" class="${classes.filter(Boolean).join(' ')} color-${color}" data-step="${index}" data-lane="${lane}" style="${place(lane, index, slot)}">
<span class="who"><span class="nth">${index + 1}</span> ${unit}</span>
${turn && html`<span class="turn">${turn}</span>`}
${showText(step)}
${showEffect(effect)}
${pool && showPoolWait(unit, pool)}
${showSeen(index, race)}
</button>
${asides.map((aside) => showAside(aside, row, layout))}
</li>
`
}

function showText({ text, values }: TraceStep): Html {
  if (isContinued(text)) return html`<span class="continued">${text}</span>`
  return html`<code>${showSql(showStatement(text, values, MAX_BOX_TEXT))}</code>`
}

/** What it saw of others, and what it came too early to see. */
function showSeen(index: number, { links, steps }: FoundRace): Html[] {
  return links
    .filter(({ kind, to }) => to === index && (kind === 'reads' || kind === 'misses'))
    .map(({ kind, from, what }) => {
      const verb = kind === 'reads' ? 'sees' : 'does not see'
      return html`<span class="seen ${kind}">${verb} what ${steps[from]?.unit} commits in step ${from + 1}${what && `: ${what}`}</span>`
    })
}

function showAside({ lane, slot, resumed, of, pool }: Aside, { index }: Row, { lanes }: Layout): Html {
  const { unit, color } = lanes[lane] as Lane
  const style = place(lane, index, slot)
  const name = `${index}:${of}`
  return html`<span class="dot aside-dot color-${color}" data-aside-dot="${name}" style="${style}" aria-hidden="true"></span>
<div class="aside ${resumed?.effect.kind} color-${color}" data-of-step="${index}" data-aside="${name}" style="${style}">${resumed && showResumed(unit, resumed.effect)}${pool && showPoolWait(unit, pool)}</div>`
}

const showPoolWait = (actor: string, what: string): Html =>
  html`<span class="effect waiting"><span class="hatch"></span> <span class="who">${actor}</span> waits for ${what}</span>`
