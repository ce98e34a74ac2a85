import { type Html, html } from './html.js'

/** Strings, comments and dollar quotes first, so that no keyword is seen in them. */
const TOKEN =
  /('(?:[^']|'')*'|\$(\w*)\$[\s\S]*?\$\2\$)|(--[^\n]*|\/\*[\s\S]*?\*\/)|\b(all|and|as|begin|between|by|call|case|commit|committed|conflict|create|cross|default|delete|distinct|do|drop|else|end|except|exists|false|fetch|for|from|full|function|group|having|in|index|inner|insert|intersect|into|is|isolation|join|key|lateral|left|level|like|limit|lock|locked|merge|not|nothing|nowait|null|of|offset|on|only|or|order|outer|over|partition|perform|read|repeatable|returning|right|rollback|savepoint|select|serializable|set|share|skip|table|then|to|transaction|true|union|update|using|values|when|where|window|with|write)\b/gi

/** No statement: where a function goes on from its yield point. */
export const isContinued = (text: string): boolean => text.startsWith('…')

/** SQL with its words and strings set off, to be read sooner; it decides nothing. */
export function showSql(text: string): Html {
  const parts: Html[] = []
  let end = 0
  for (const found of text.matchAll(TOKEN)) {
    const [token, string, , comment] = found
    parts.push(html`${text.slice(end, found.index)}`)
    if (string) parts.push(html`<i class="string">${token}</i>`)
    else if (comment) parts.push(html`<i class="comment">${token}</i>`)
    else parts.push(html`<b>${token}</b>`)
    end = found.index + token.length
  }
  return html`${parts}${text.slice(end)}`
}
