// Takes the picture of a report page that README.md shows: runs the example, and opens its page in a Chromium of this
// machine. Run it after `npm run build` when the page looks different: node scripts/race-picture.mjs
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { chromium } from 'playwright-core'
import { Dibs } from '../dist/index.js'
import { fastSettings } from '../dist/testing.js'

const root = join(import.meta.dirname, '..')
const target = join(root, 'docs/images/race.png')

const pages = mkdtempSync(join(tmpdir(), 'dibs-picture-'))
let dibs
try {
  dibs = await Dibs.open({ embedded: { temporary: true, settings: fastSettings } })
  execFileSync(process.execPath, [join(root, 'examples/exploring/last-item.mjs')], {
    env: { ...process.env, DATABASE_URL: dibs.url, DIBS_REPORT: pages },
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  const [page] = readdirSync(pages)
  if (!page) throw new Error('the example wrote no page')
  await takePicture(join(pages, page))
} finally {
  await dibs?.close()
  rmSync(pages, { recursive: true, force: true })
}

async function takePicture(file) {
  const executablePath = execFileSync(
    'sh',
    ['-c', 'command -v chromium chromium-browser google-chrome | head -n 1'],
    {
      encoding: 'utf8',
    },
  ).trim()
  // The sandbox of Chromium refuses to run as root. The page is ours.
  const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] })
  try {
    const page = await browser.newPage({
      viewport: { width: 1180, height: 1600 },
      deviceScaleFactor: 1.5,
      colorScheme: 'light',
    })
    await page.goto(`${pathToFileURL(file)}#step=5`)
    const box = await page.locator('.story').boundingBox()
    const margin = 20
    const clip = {
      x: box.x - margin,
      y: box.y - margin / 2,
      width: box.width + 2 * margin,
      height: box.height + margin,
    }
    await page.screenshot({ path: target, clip })
  } finally {
    await browser.close()
  }
}
