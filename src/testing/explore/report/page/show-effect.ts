import { type Html, html } from '../../../page/html.js'
import type { Effect } from '../../schedule/trace.js'
import { showResult } from '../printout.js'

/** What became of a statement, as a line. Each kind has its own sign and words beside its color. */
export function showEffect(effect: Effect): Html | undefined {
  switch (effect.kind) {
    case 'done': {
      const shown = showResult(effect.result)
      if (effect.result.error) return html`<span class="effect bad">✕ ${shown}</span>`
      return shown ? html`<span class="effect">→ ${shown}</span>` : undefined
    }
    case 'waits':
      return html`<span class="effect waiting"><span class="hatch"></span> waits for ${effect.for.join(' and ')}${effect.what && ` (${effect.what})`}</span>`
    case 'point':
      return html`<span class="effect standing">… stops at ‘${effect.name}’</span>`
    case 'lost':
      return html`<span class="effect bad">✕ its connection is gone</span>`
  }
}

/** What became of one that had waited. */
export function showResumed(unit: string, effect: Effect): Html {
  const verb = effect.kind === 'waits' ? 'now' : 'goes on'
  return html`<span class="resumes"><span class="who">${unit}</span> ${verb}</span>${showEffect(effect)}`
}
