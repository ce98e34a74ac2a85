import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Browser, BrowserContextOptions, Page } from 'playwright-core'

export interface OpenedPage {
  readonly page: Page
  /** Problems of the page: errors, console messages, dialogs, and requests besides that for the page. */
  readonly faults: string[]
}

/** Opens a page from a file, as a reader would, and gathers what it does that it should not. */
export async function withPageOpen(
  browser: Browser,
  html: string,
  use: (opened: OpenedPage) => Promise<void>,
  { hash = '', ...options }: BrowserContextOptions & { hash?: string } = {},
): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'dibs-page-'))
  const file = join(folder, 'page.html')
  writeFileSync(file, html)
  const url = pathToFileURL(file).href
  // Without motion a scroll is over when the call returns.
  const context = await browser.newContext({ reducedMotion: 'reduce', ...options })
  try {
    const page = await context.newPage()
    const faults: string[] = []
    page.on('pageerror', (error) => faults.push(`error: ${error.message}`))
    page.on('console', (message) => faults.push(`console: ${message.text()}`))
    page.on('request', (request) => {
      const isOwn = request.url().split('#')[0] === url || request.url().startsWith('data:')
      if (!isOwn) faults.push(`request: ${request.url()}`)
    })
    page.on('dialog', (dialog) => {
      faults.push(`dialog: ${dialog.message()}`)
      void dialog.dismiss()
    })
    await page.goto(url + hash)
    await use({ page, faults })
  } finally {
    await context.close()
    rmSync(folder, { recursive: true })
  }
}
