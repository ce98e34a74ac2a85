import { type Html, html } from './html.js'

/** Strings, comments and dollar quotes come first, so that they contain no keywords. */
const TOKEN =
  /('(?:[^']|'')*'|\$(\w*)\$[\s\S]*?\$\2\$)|(--[^\n]*|\/\*[\s\S]*?\*\/)|\b(all|and|as|begin|between|by|call|case|commit|committed|conflict|create|cross|default|delete|distinct|do|drop|else|end|except|exists|false|fetch|for|from|full|function|group|having|in|index|inner|insert|intersect|into|is|isolation|join|key|lateral|left|level|like|limit|lock|locked|merge|not|nothing|nowait|null|of|offset|on|only|or|order|outer|over|partition|perform|read|repeatable|returning|right|rollback|savepoint|select|serializable|set|share|skip|table|then|to|transaction|true|union|update|using|values|when|where|window|with|write)\b/gi

/** True for the line at which a function continues from its yield point. It is not a statement. */
export const isContinued = (text: string): boolean => text.startsWith('…')

/** SQL with keywords, strings and comments highlighted. */
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
