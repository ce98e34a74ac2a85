import type { StatementEffect } from '../crash/story.js'
import { showResult } from '../explore/report/printout.js'
import type { Effect } from '../explore/schedule/trace.js'
import { type Html, html } from './html.js'

/** The result of a statement in one line. Each kind has its own sign and words beside its color. */
export function showEffect(effect: Effect | StatementEffect): Html | undefined {
  switch (effect.kind) {
    case 'done': {
      const shown = showResult(effect.result)
      if (effect.result.error) return html`<span class="effect bad">✕ ${shown}</span>`
      return shown ? html`<span class="effect">→ ${shown}</span>` : undefined
    }
    case 'unseen':
      return html`<span class="effect">→ ${showResult(effect.result) || 'done'} <i class="unseen">unseen</i></span>`
    case 'waits':
      return html`<span class="effect waiting"><span class="hatch"></span> waits for ${effect.for.join(' and ')}${'what' in effect && effect.what && ` (${effect.what})`}</span>`
    case 'point':
      return html`<span class="effect standing">… stops at ‘${effect.name}’</span>`
    case 'injected':
      return html`<span class="effect bad">✕ ERROR ${effect.code} ${effect.message}</span>`
    case 'lost':
      return html`<span class="effect bad">✕ its connection is gone</span>`
    case 'not sent':
      return html`<span class="effect standing">not sent</span>`
  }
}

/** The result of a statement that another step let continue. */
export function showResumed(unit: string, effect: Effect): Html {
  const verb = effect.kind === 'waits' ? 'now' : 'goes on'
  return html`<span class="resumes"><span class="who">${unit}</span> ${verb}</span>${showEffect(effect)}`
}
