import { type Html, html } from './html.js'

export interface Verdict {
  readonly isBad: boolean
  readonly title: string
  /** What is set off beside it: the name of what was found. */
  readonly tag?: string | undefined
}

/** The first line of a report, with the button for the theme. */
export function showVerdict({ isBad, title, tag }: Verdict): Html {
  return html`<header class="top">
<div class="verdict ${isBad ? 'bad' : 'good'}"><span class="sign" aria-hidden="true">${isBad ? '✕' : '✓'}</span>
<h1>${title}${tag && html` <span class="tag">${tag}</span>`}</h1></div>
<button type="button" class="theme" data-theme-toggle hidden>Dark</button>
</header>`
}

export function showFigures(figures: readonly (readonly [name: string, value: string])[]): Html {
  return html`<dl class="figures">${figures.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`
}

export function showNotes(notes: readonly string[]): Html | false {
  return (
    notes.length > 0 &&
    html`<ul class="notes">${notes.map((note) => html`<li><b>Note</b> ${note}</li>`)}</ul>`
  )
}

/** The string that runs it again, to be copied. It is an id too, so it must be the only one of its kind. */
export function showReplay(replay: string, id: string): Html {
  return html`<code id="${id}">DIBS_REPLAY=${replay}</code>
<button type="button" data-copy="${id}">Copy</button>`
}

export const showPrintout = (text: string): Html =>
  html`<details class="printout"><summary>The printout</summary><pre tabindex="0">${text}</pre></details>`
