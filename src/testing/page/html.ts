/** Markup. Only `html` makes it. */
export class Html {
  constructor(readonly text: string) {}
}

type Part = string | number | false | undefined | Html | readonly Part[]

const SIGNS: Record<string, string> = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' }

/** Escapes text for an element, or for an attribute in quotes. */
export const escapeHtml = (text: string): string => text.replace(/[&<>"']/g, (sign) => SIGNS[sign] as string)

/** Makes markup. Values are escaped unless `html` made them, so SQL, errors and names cannot inject markup. */
export function html(literals: TemplateStringsArray, ...parts: Part[]): Html {
  return new Html(literals.map((literal, i) => (i === 0 ? '' : show(parts[i - 1])) + literal).join(''))
}

function show(part: Part): string {
  if (part === undefined || part === false) return ''
  if (part instanceof Html) return part.text
  return typeof part === 'object' ? part.map(show).join('') : escapeHtml(String(part))
}
