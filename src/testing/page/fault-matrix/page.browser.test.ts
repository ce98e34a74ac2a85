import type { Browser, Locator, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { installedBrowser, startBrowser } from '../../../../test/browser.js'
import { requireComponent } from '../../../../test/components.js'
import { findLowContrast } from '../../../../test/contrast.js'
import { itInDepth } from '../../../../test/depth.js'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { answered, largeCrash, madeCrash, madeLine, madePoint } from '../../../../test/made-crash.js'
import { withPageOpen } from '../../../../test/opened-page.js'
import { crashLoop } from '../../crash/crash-loop.js'
import type { CrashHandle } from '../../crash/options.js'
import type { CrashReport } from '../../crash/report/report.js'
import type { StoryLine } from '../../crash/story.js'
import { reportPage } from '../../report-page.js'

const hasBrowser = requireComponent('Chromium', installedBrowser?.version, 'what a browser shows of a report')

const { url } = exploredSchema(
  'create table claim (key text primary key, status text); create table event (id int primary key)',
)

const claim = `insert into claim values ($1, 'pending') on conflict do nothing`

/** A wrong program: it leaves a pending claim to its owner, which may be dead. */
async function wrong(db: CrashHandle): Promise<void> {
  const { rowCount } = await db.query(claim, ['order 1'])
  if (rowCount === 0) {
    const { rows } = await db.query('select status from claim where key = $1', ['order 1'])
    if (rows[0].status === 'pending') throw new Error('somebody else is at it')
    return
  }
  await db.query('insert into event values (1)')
  await db.query(`update claim set status = 'active' where key = $1`, ['order 1'])
}

/** All or nothing, in one statement. */
async function right(db: CrashHandle): Promise<void> {
  await db.query(`with claimed as (${claim} returning 1) insert into event select 1 from claimed`, [
    'order 1',
  ])
}

const oneEvent = async (db: CrashHandle): Promise<boolean> =>
  (await db.query('select from event')).rowCount === 1

const fault = (text: string): StoryLine => ({ kind: 'event', text, isFault: true })

/** All that a story and a point can carry, in all modes. */
function everything(): CrashReport {
  const insert = `insert into event values (1)`
  const injected = {
    kind: 'injected',
    code: '40001',
    message: 'could not serialize access (injected)',
  } as const
  const story: StoryLine[] = [
    madeLine('run', 1, insert),
    madeLine('run/2', 2, insert, { kind: 'unseen', result: { tag: 'COMMIT', rows: [], rowCount: 0 } }),
    fault('the process stands still'),
    madeLine('recovery 1', 1, 'select 1', answered('SELECT 1', ['one']), { waitedFor: ['run'] }),
    madeLine('recovery 1', 2, insert, injected),
    { kind: 'event', text: 'recovery 1 fails: no' },
    madeLine('recovery 2', 1, insert, { kind: 'waits', for: ['run', 'process 7'] }),
    { kind: 'event', text: 'run wakes up and goes on' },
    madeLine('run', 3, insert, { kind: 'lost' }),
    madeLine('recovery 2', 2, insert, { kind: 'not sent' }),
    madeLine('recovery 2', 3, insert, {
      kind: 'done',
      result: { tag: '', rows: [], rowCount: 0, error: { code: '23505', message: 'duplicate key' } },
    }),
  ]
  const failure = { kind: 'late write', message: 'run has written over what another had written.' } as const
  const own = { path: 'A', entersRecovery: true }
  const points = [
    madePoint('none', story.slice(0, 1), { run: 'fulfilled', recoveries: 1, path: 'nothing to do' }),
    madePoint('zombie:after-2', story, {
      ...own,
      failure,
      run: 'hangs',
      recoveries: 2,
      waited: 'recovery 1 waits for run in: select 1',
      lateWrites: [{ table: 'shop.event', row: { id: 1, note: 'mine' } }],
      repeatedEffects: ['charge order 7'],
    }),
    madePoint('process:after-2:SIGKILL', story, { agrees: true }),
    madePoint('process:after-2:SIGSTOP', story, { agrees: false }),
    madePoint('server:after-2', story, own),
    madePoint('crash:before-1', story.slice(0, 4)),
    madePoint('crash:before-1:again-before-2', story),
    madePoint('crash:before-1:again-after-2', story),
    madePoint('error:before-1:40001', story, { run: 'rejected' }),
  ]
  return madeCrash(points, {
    modes: ['crash', 'error', 'half-open', 'zombie', 'server', 'process'],
    paths: [{ name: 'A', statements: ['select 1 -> SELECT 1', `${insert} -> INSERT 1`], points: 2 }],
    notes: ['At 1 point recovery had to wait.'],
  })
}

const failsAlone = (): CrashReport =>
  madeCrash([
    madePoint('none', [madeLine('run', 1, 'select 1'), { kind: 'event', text: 'run fails: no' }], {
      failure: { kind: 'failed', message: '`run` failed with nothing done to it: no' },
      run: 'rejected',
      recoveries: 0,
    }),
  ])

const found = {} as Record<'wrong' | 'right', CrashReport>
const large = largeCrash()
const reports: Record<string, () => CrashReport> = {
  wrong: () => found.wrong,
  right: () => found.right,
  everything,
  failsAlone,
}

describe.skipIf(!hasBrowser)('the page in a browser', () => {
  let browser: Browser
  beforeAll(async () => {
    browser = await startBrowser()
    found.wrong = await crashLoop({ url, run: wrong, invariant: oneEvent, throws: false })
    found.right = await crashLoop({ url, run: right, invariant: oneEvent, duringRecovery: true })
  }, 60_000)
  afterAll(() => browser?.close())

  const sheet = (page: Page) => page.locator('.sheet').filter({ visible: true })
  const words = async (found: Locator) => (await found.innerText()).replace(/\s+/g, ' ')
  const title = (page: Page) => words(sheet(page).locator('h2'))
  const cell = (page: Page, id: string) => page.locator(`.matrix a[href="#${id}"]`)
  const marked = (page: Page) => page.locator('.matrix [aria-current]').getAttribute('href')

  it('shows the first point that fails at once, with what was done and what came of it', async () => {
    await withPageOpen(
      browser,
      reportPage(found.wrong),
      async ({ page }) => {
        expect(await page.locator('h1').innerText()).toBe('Harm found')
        expect(await page.locator('.summary').innerText()).toBe(found.wrong.summary)
        expect(await words(page.locator('.failures'))).toMatch(
          /^progress Not all is .* at 22 points, first crash:after-1$/,
        )
        expect(await title(page)).toBe('✕ crash after statement 1')
        const text = await words(sheet(page))
        expect(text).toContain('progress Not all is done after 3 recoveries.')
        expect(text).toContain('run died recoveries 3')
        expect(text).toContain('DIBS_REPLAY=crash:after-1')
        expect(text).toContain(
          `run 1 insert into claim values ('order 1', 'pending') on conflict do nothing → 1 row unseen ✕ the process is killed recovery 1 1 insert into`,
        )
        expect(text).toContain('recovery 3 fails: somebody else is at it ✕ something was left undone')
      },
      { javaScriptEnabled: false },
    )
  })

  it('has a cell for each place and mode, which says how its points went, and leads to them', async () => {
    await withPageOpen(
      browser,
      reportPage(found.wrong),
      async ({ page, faults }) => {
        const rows = await page.locator('.matrix tr').allInnerTexts()
        expect(rows.map((text) => text.replace(/\s+/g, ' ').trim())).toEqual([
          'crash error half-open zombie',
          'With nothing done to it ✓',
          `1 insert into claim values ('order 1', 'pending') on conflict do nothing`,
          'before ✓ ↺ ✓ 5 ↺ ✓ ↺ ✓ ↺',
          expect.stringMatching(/^after ✕ fails \S ✕ 2\/2 \S ✕ fails \S ✓/),
          '2 insert into event values (1)',
          expect.stringMatching(/^before ✕ fails \S ✕ 5\/5 \S ✕ fails \S ✓/),
          expect.stringMatching(/^after ✕ fails/),
          `3 update claim set status = 'active' where key = 'order 1'`,
          expect.stringMatching(/^before ✕ fails/),
          expect.stringMatching(/^after ✓/),
        ])
        expect(await cell(page, 'error-after-1').getAttribute('aria-label')).toMatch(
          /^error after statement 1: 2 of 2 points fail\. Recovery: /,
        )
        expect(await marked(page)).toBe('#crash-after-1')
        await page.setViewportSize({ width: 1400, height: 600 })
        await cell(page, 'zombie-after-3').scrollIntoViewIfNeeded()
        const before = await page.evaluate('scrollY')
        for (const [id, shown] of [
          ['error-before-2', '✕ error before statement 2'],
          ['zombie-after-3', '✓ zombie after statement 3'],
          ['half-open-before-3', '✕ half-open before statement 3'],
        ] as const) {
          await cell(page, id).click()
          expect(await title(page)).toBe(shown)
          await expect.poll(() => marked(page)).toBe(`#${id}`)
          expect(await page.evaluate('scrollY')).toBe(before) // the panel is in sight
        }
        await sheet(page).getByRole('button', { name: 'Copy' }).click()
        await expect.poll(() => sheet(page).locator('[data-copy]').innerText()).toBe('Copied')
        expect(await page.evaluate('navigator.clipboard.readText()')).toBe(
          `DIBS_REPLAY=half-open:before-3@${found.wrong.identity}`,
        )
        await page.goBack()
        expect(await title(page)).toBe('✓ zombie after statement 3')
        expect(faults).toEqual([])
      },
      { permissions: ['clipboard-read', 'clipboard-write'] },
    )
  })

  it('tells all that is known of a point, its story on rails, and the ways of recovery', async () => {
    await withPageOpen(browser, reportPage(everything()), async ({ page }) => {
      expect(await title(page)).toBe('✕ zombie after statement 2')
      const text = await words(sheet(page))
      for (const part of [
        'late write run has written over what another had written.',
        'run hangs recoveries 2 way of recovery A',
        'waited recovery 1 waits for run in: select 1',
        'late write shop.event {"id":1,"note":"mine"}',
        'repeated effects charge order 7',
        'connection 2 → done unseen',
        'waits for run → one',
        '✕ ERROR 40001 could not serialize access (injected)',
        'waits for run and process 7',
        'run goes on 3 insert into event values (1) ✕ its connection is gone',
        'not sent',
        '✕ ERROR 23505 duplicate key',
        '✕ a late write',
      ])
        expect(text).toContain(part)
      const classes = await sheet(page)
        .locator('.timeline li:not(.end)')
        .evaluateAll((rows) => rows.map((row) => row.className))
      const rails = classes.map((text) => text.replace(/.*(lane-\d) color-\d/, '$1'))
      expect(rails.slice(0, 6)).toEqual([
        ...Array(4).fill('lane-0 on-0'),
        ...Array(2).fill('lane-1 gap-0 on-1'), // run stands still, and comes back
      ])
      expect(rails.slice(-2)).toEqual(Array(2).fill('lane-1 on-1'))
      expect(rails).toContain('lane-0 on-0 gap-1')
      const ways = await words(page.locator('.ways'))
      expect(ways).toContain(
        'After 6 of 8 points recovery did nothing of its own: ↺ from the start: before 1, after 2 One way of its own',
      )
      expect(ways).toContain(
        'A after 2 points, first zombie:after-2 select 1 → SELECT 1 insert into event values (1) → INSERT 1',
      )
      await sheet(page).getByRole('link', { name: 'A', exact: true }).click()
      expect(await page.locator('.way').evaluate((way) => way.matches(':target'))).toBe(true)
    })
  })

  const open = (page: Page) => sheet(page).locator('details[open] summary b').allInnerTexts()

  it('moves through the table with the arrow keys, and opens that of several points which fails', async () => {
    const report = everything()
    const points = report.points.map((point) =>
      point.replay === 'crash:before-1:again-after-2'
        ? { ...point, verdict: 'failed' as const, failure: { kind: 'progress', message: 'no' } as const }
        : point,
    )
    await withPageOpen(browser, reportPage({ ...report, points }), async ({ page, faults }) => {
      const press = async (key: string, id: string) => {
        await page.keyboard.press(key)
        expect(await page.locator(':focus').getAttribute('href'), key).toBe(`#${id}`)
        await expect.poll(() => marked(page)).toBe(`#${id}`)
      }
      await cell(page, 'zombie-after-2').focus()
      await press('ArrowRight', 'server-after-2')
      await press('ArrowRight', 'process-after-2')
      await press('ArrowRight', 'process-after-2')
      await cell(page, 'error-before-1').focus()
      await press('ArrowLeft', 'crash-twice-before-1')
      expect(await title(page)).toBe('✕ crash twice before statement 1')
      expect(await open(page)).toEqual(['and again after 2 of its recovery'])
      expect(await sheet(page).locator('.what').isVisible()).toBe(false) // told below
      await sheet(page).locator('summary').nth(1).click()
      expect(await open(page)).toEqual([
        'and again after 2 of its recovery',
        'and again before 2 of its recovery',
      ])
      expect(faults).toEqual([])
    })
  })

  it('opens the point that its address names, and leaves out what is fine, without a script', async () => {
    await withPageOpen(
      browser,
      reportPage(everything()),
      async ({ page }) => {
        expect(await title(page)).toBe('✓ process after statement 2')
        expect(await open(page)).toContain('SIGSTOP')
        expect(await words(sheet(page))).toContain('✕ did otherwise')
        await page.getByLabel('Only what fails').check()
        const rows = await page.locator('.matrix tbody tr').filter({ visible: true }).allInnerTexts()
        expect(rows.map((row) => row.trim().split(/\s/)[0])).toEqual(['2', 'after'])
      },
      { hash: '#process:after-2:SIGSTOP', javaScriptEnabled: false },
    )
  })

  it.each(Object.entries(reports))('of the report %s fits and can be read', async (name, report) => {
    await withPageOpen(browser, reportPage(report()), async ({ page, faults }) => {
      if (name === 'right') await looksRight(page)
      if (name === 'failsAlone') await looksAlone(page)
      for (const width of [320, 390, 820, 1400]) {
        await page.setViewportSize({ width, height: 844 })
        expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width)
      }
      for (const colorScheme of ['light', 'dark'] as const) {
        await page.emulateMedia({ colorScheme })
        expect(await findLowContrast(page)).toEqual([])
      }
      expect(await brokenLinks(page)).toEqual([])
      expect(faults).toEqual([])
    })
  })

  /** How far "no harm" goes. */
  const looksRight = async (page: Page) => {
    expect(await page.locator('h1').innerText()).toBe('No harm')
    expect(await page.locator('main > .explanation').innerText()).toContain('are other questions')
    expect(await page.locator('.matrix .bad, .failure, .filter').count()).toBe(0)
    expect(await title(page)).toBe('✓ crash before statement 1')
    expect(await words(page.locator('.figures'))).toMatch(/^statement 1 points \d+ runs \d+ seconds/)
  }

  /** The page of a program that fails without a fault shows that failure, and no table. */
  const looksAlone = async (page: Page) => {
    expect(await page.locator('h1').innerText()).toBe('Fails with nothing done to it')
    expect(await title(page)).toBe('✕ With nothing done to it')
    expect(await page.locator('.matrix, .ways, [data-copy]').count()).toBe(0)
  }

  it('brings the points into sight on a phone, and the table back', async () => {
    await withPageOpen(
      browser,
      reportPage(found.wrong),
      async ({ page }) => {
        await cell(page, 'zombie-before-1').click()
        expect(await title(page)).toBe('✓ zombie before statement 1')
        expect((await sheet(page).locator('h2').boundingBox())?.y).toBeLessThan(200)
        await page.getByRole('link', { name: 'Back to the table' }).click()
        const row = await page.locator('#before-1').boundingBox()
        expect(row?.y).toBeGreaterThan(0)
        expect(row?.y).toBeLessThan(800)
      },
      { viewport: { width: 390, height: 844 } },
    )
  })

  it('takes what users wrote for text, wherever it stands', async () => {
    const evil = `${'long'.repeat(60)}</script></style><script>alert(1)</script><img src=x onerror=alert(2)>"' onclick='alert(3)' x="`
    const story: StoryLine[] = [
      madeLine('run', 1, `select '${evil}' -- ${evil}`, answered('SELECT 1', [evil]), { values: [evil] }),
      fault(evil),
      { kind: 'event', text: evil },
      madeLine('recovery 1', 1, evil, { kind: 'injected', code: evil, message: evil }, { waitedFor: [evil] }),
      madeLine(`recovery 2/${evil}`, 1, evil, { kind: 'waits', for: [evil] }),
    ]
    const point = {
      statement: evil,
      path: evil,
      entersRecovery: true,
      waited: evil,
      lateWrites: [{ table: evil, row: { [evil]: evil } }],
      repeatedEffects: [evil],
      failure: { kind: 'invariant', message: evil } as const,
    }
    const points = [
      madePoint('none', story.slice(0, 1)),
      madePoint('crash:after-1', story, point),
      madePoint('crash:after-1:again-before-1', story, point),
    ]
    const paths = [{ name: evil, statements: [`${evil} -> ${evil}`], points: 2 }]
    const report = { ...madeCrash(points, { paths, notes: [evil] }), summary: evil, printout: evil }
    await withPageOpen(browser, reportPage(report), async ({ page, faults }) => {
      for (const one of await sheet(page).locator('summary').all()) await one.click()
      await page.locator('.printout summary').click()
      expect(await page.locator('img, [onclick], script:not([src])').count()).toBe(3) // ours
      expect(await page.locator('.summary').innerText()).toBe(evil)
      expect(await page.title()).toContain(evil.slice(0, 20))
      for (const width of [320, 1400]) {
        await page.setViewportSize({ width, height: 844 })
        expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width)
      }
      expect(faults).toEqual([])
    })
  })

  itInDepth(
    'stays small and quick with more than two thousand points, and says what it leaves out',
    async () => {
      const html = reportPage(large)
      expect(large.points.length).toBeGreaterThan(2_000)
      expect(html.length).toBeLessThan(3_500_000)
      const startedAt = performance.now()
      await withPageOpen(browser, html, async ({ page, faults }) => {
        expect(await title(page)).toBe('✕ crash before statement 3')
        expect(performance.now() - startedAt).toBeLessThan(10_000)
        expect(await page.locator('.left-out').first().innerText()).toMatch(
          /^To keep it small, this page tells the stories of \d+ of 2,241 runs/,
        )
        expect(await words(sheet(page))).toContain('✕ the process is killed')
        await cell(page, 'zombie-after-40').click()
        expect(await words(sheet(page))).toContain('statements 2 to 38, the same as with nothing done to it')
        expect(await brokenLinks(page)).toEqual([])
        expect(faults).toEqual([])
      })
    },
  )

  /** Links that lead nowhere, and names that are there twice. */
  const brokenLinks = (page: Page) =>
    page.evaluate(`[
      ...[...document.querySelectorAll('a')].map((a) => a.getAttribute('href').slice(1)).filter((id) => !document.getElementById(id)),
      ...[...document.querySelectorAll('[id]')].map(({ id }) => id).filter((id, i, all) => all.indexOf(id) !== i),
    ]`)
})
