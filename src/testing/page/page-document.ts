import { createHash } from 'node:crypto'
import { pageFiles } from './generated/page-files.js'
import { Html, html } from './html.js'

export interface PageParts {
  readonly title: string
  /** Selects the icon of the browser tab: a cross or a tick. */
  readonly isBad: boolean
  readonly body: Html
  /** Styles and scripts besides the shared ones: `*.css` and `*.browser.js` under src/testing. */
  readonly files: readonly (keyof typeof pageFiles)[]
  /** Rules for this page alone. */
  readonly style?: string | undefined
}

const SHARED = ['page/page.css', 'page/theme.browser.js', 'page/copy.browser.js'] as const

/** Makes one file without dependencies, to open from a folder, to keep on a build server, or to send by mail. */
export function pageDocument({ title, isBad, body, files, style = '' }: PageParts): string {
  const read = (end: string): string[] =>
    [...SHARED, ...files].filter((file) => file.endsWith(end)).map((file) => pageFiles[file])
  const scripts = read('.js')
  const hashes = scripts.map((text) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`)
  // The page may run its own scripts alone, and may not connect to anything.
  const policy = `default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src ${hashes.join(' ')}; base-uri 'none'; form-action 'none'`
  return html`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${title}</title>
<link rel="icon" href="${icon(isBad)}">
<style>${new Html([...read('.css'), style].join('\n'))}</style>
</head>
<body>
${body}
${new Html(scripts.map((text) => `<script>${text}</script>\n`).join(''))}</body>
</html>
`.text
}

function icon(isBad: boolean): string {
  const [color, sign] = isBad ? ['#b42318', 'M5 5l6 6M11 5l-6 6'] : ['#1a7f4b', 'M4 8l3 3 5-6']
  const image = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="8" fill="${color}"/><path d="${sign}" fill="none" stroke="#fff" stroke-width="2"/></svg>`
  return `data:image/svg+xml,${encodeURIComponent(image)}`
}
