import { showStatement } from '../../explore/report/printout.js'
import type { FoundRace } from '../../explore/report/report.js'
import type { TraceStep } from '../../explore/schedule/trace.js'
import { type Html, html } from '../html.js'
import { showEffect, showResumed } from '../show-effect.js'
import { isContinued, showSql } from '../show-sql.js'
import type { Aside, Lane, Row, ScheduleLayout } from './layout.js'

/** The maximum length of a statement in a box. The panel shows all of it. */
const MAX_BOX_TEXT = 320

/** The schedule, with a lane for each connection and a row for each step. */
export function showLanes(race: FoundRace, layout: ScheduleLayout): Html {
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

function showRail({ color, first, last }: Lane, lane: number, { rows }: ScheduleLayout): Html {
  const [from, to] = [rows[first] as Row, rows[last] as Row]
  return html`<div class="rail color-${color}" style="${span(lane, [first, last + 1], [from.slot, lastSlot(to) + 1])}" aria-hidden="true"></div>`
}

/** Bars from the step at which a statement stops to the step that lets it continue. */
function showPauses({ pauses, lanes, rows, endSlot }: ScheduleLayout): Html[] {
  return pauses.map(({ kind, unit, from, to }) => {
    const lane = lanes.findIndex((one) => one.unit === unit)
    const begin = rows[from] as Row
    const end = to === undefined ? undefined : rows[to]
    // If no step let the statement continue, the bar ends at the next step of its own lane.
    const aside = end?.asides.find((one) => one.resumed?.unit === unit)
    const [endRow, slot] = !end
      ? [rows.length, endSlot]
      : aside
        ? [end.index + 1, aside.slot + 1]
        : [end.index, end.slot]
    return html`<div class="pause ${kind}${!end && ' endless'}" data-pause="${from}" style="${span(lane, [from, endRow], [begin.slot, slot])}" aria-hidden="true"></div>`
  })
}

function showRow(row: Row, layout: ScheduleLayout, race: FoundRace): Html {
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

/** The commits of other actors that the step saw, and those that came too late for it. */
function showSeen(index: number, { links, steps }: FoundRace): Html[] {
  return links
    .filter(({ kind, to }) => to === index && (kind === 'reads' || kind === 'misses'))
    .map(({ kind, from, what }) => {
      const verb = kind === 'reads' ? 'sees' : 'does not see'
      return html`<span class="seen ${kind}">${verb} what ${steps[from]?.unit} commits in step ${from + 1}${what && `: ${what}`}</span>`
    })
}

function showAside(
  { lane, slot, resumed, of, pool }: Aside,
  { index }: Row,
  { lanes }: ScheduleLayout,
): Html {
  const { unit, color } = lanes[lane] as Lane
  const style = place(lane, index, slot)
  const name = `${index}:${of}`
  return html`<span class="dot aside-dot color-${color}" data-aside-dot="${name}" style="${style}" aria-hidden="true"></span>
<div class="aside ${resumed?.effect.kind} color-${color}" data-of-step="${index}" data-aside="${name}" style="${style}">${resumed && showResumed(unit, resumed.effect)}${pool && showPoolWait(unit, pool)}</div>`
}

const showPoolWait = (actor: string, what: string): Html =>
  html`<span class="effect waiting"><span class="hatch"></span> <span class="who">${actor}</span> waits for ${what}</span>`
