import type { Browser, Page } from 'playwright-core'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { installedBrowser, startBrowser } from '../../../../test/browser.js'
import { requireComponent } from '../../../../test/components.js'
import { findLowContrast } from '../../../../test/contrast.js'
import { isDeep } from '../../../../test/depth.js'
import { failed, lastLamp, madeReport, madeStep, rows, waitsFor } from '../../../../test/made-race.js'
import { withPageOpen } from '../../../../test/opened-page.js'
import { explorePage } from '../../explore/report/explore-page.js'
import type { ExploreReport } from '../../explore/report/report.js'

const hasBrowser = requireComponent('Chromium', installedBrowser?.version, 'what a browser shows of a report')

const passed: ExploreReport = {
  ...lastLamp(),
  verdict: 'passed',
  summary: 'No violation in all 4 schedules.',
  isComplete: true,
  isExhaustive: true,
  notes: ['total() runs as one step.'],
  race: undefined,
}

/** All that a step can carry, and more lanes than a phone has room for. */
function everything(): ExploreReport {
  const options = ['alice', 'alice/2', 'bob', 'carol']
  const pool = 'a connection of its pool (all 2 in use)'
  return madeReport([
    madeStep('alice', 'select total()', { kind: 'point', name: 'a is read' }, { options, loops: 'dave' }),
    madeStep('alice/2', 'update stock set amount = 1', rows('UPDATE 3'), {
      poolWaits: { carol: pool, dave: pool },
    }),
    madeStep('bob', 'update stock set amount = 2', waitsFor('alice/2'), { options }),
    madeStep('carol', 'update stock set amount = 3', waitsFor('bob', 'process 7')),
    madeStep('alice/2', 'commit (implicit)', rows('COMMIT'), {
      resumed: [
        { unit: 'bob', effect: failed('40001', 'could not serialize access') },
        { unit: 'carol', effect: waitsFor('alice') },
      ],
      waiters: 2,
    }),
    madeStep('alice', `… goes on from 'a is read'`, { kind: 'lost' }, { poolWaits: { alice: pool } }),
  ])
}

/** Thirty steps, with links from each to the next. */
function long(): ExploreReport {
  const steps = Array.from({ length: 30 }, (_, i) =>
    madeStep(
      i % 3 === 0 ? 'alice' : 'bob',
      `update stock set amount = ${i} where sku = 'lamp'`,
      rows('UPDATE 1'),
    ),
  )
  const links = steps.slice(1).map((_, i) => ({ kind: 'reads', from: i, to: i + 1, what: 'stock' }) as const)
  return madeReport(steps, { links })
}

const reports = { everything: everything(), passed, ...(isDeep ? { race: lastLamp(), long: long() } : {}) }

/** For what the browser does in its own time. */
const soon = { timeout: 30_000 }

describe.skipIf(!hasBrowser)('the page in a browser', () => {
  let browser: Browser
  beforeAll(async () => {
    browser = await startBrowser()
  }, 60_000)
  afterAll(() => browser?.close())

  const current = (page: Page) => page.locator('.box[aria-current="step"]')
  const detail = (page: Page) => page.locator('.detail:visible')
  /** Numbers of the step that is marked, in the lanes, in the panel and in the address. */
  const places = async (page: Page) => [
    Number(await current(page).getAttribute('data-step')) + 1,
    Number(await detail(page).getAttribute('data-detail')) + 1,
    Number(/Step (\d+)/.exec((await page.locator('#place').textContent()) ?? '')?.[1]),
    Number(/#step=(\d+)$/.exec(page.url())?.[1] ?? 1),
  ]

  it('is stepped through with the arrow keys, Home and End, and stops at both ends', async () => {
    await withPageOpen(browser, explorePage(lastLamp()), async ({ page, faults }) => {
      const press = async (key: string, step: number) => {
        await page.keyboard.press(key)
        expect(await places(page), key).toEqual([step, step, step, step])
        expect(await page.locator('.detail:visible').count()).toBe(1)
      }
      expect(await places(page)).toEqual([1, 1, 1, 1])
      await press('ArrowLeft', 1)
      await press('ArrowRight', 2)
      await press('ArrowRight', 3)
      await press('ArrowLeft', 2)
      await press('End', 6)
      await press('ArrowRight', 6)
      await press('Home', 1)
      await press('Control+ArrowRight', 1) // the browser's own
      expect(faults).toEqual([])
    })
  })

  it('moves along a lane with up and down once the lanes have the focus, and takes the focus along', async () => {
    await withPageOpen(browser, explorePage(lastLamp()), async ({ page }) => {
      await page.keyboard.press('ArrowDown')
      expect((await places(page))[0]).toBe(1)
      await current(page).focus()
      await page.keyboard.press('ArrowDown')
      expect(await places(page)).toEqual([4, 4, 4, 4])
      await page.keyboard.press('ArrowDown')
      await page.keyboard.press('ArrowDown')
      expect((await places(page))[0]).toBe(6)
      await page.keyboard.press('ArrowUp')
      expect((await places(page))[0]).toBe(4)
      expect(await page.locator(':focus').getAttribute('data-step')).toBe('3')
      const outline = await page.evaluate('getComputedStyle(document.activeElement).outlineStyle')
      expect(outline).toBe('solid')
    })
  })

  it('has buttons, boxes and links for the same, and opens at the step that its address names', async () => {
    const page = explorePage(lastLamp())
    await withPageOpen(
      browser,
      page,
      async ({ page }) => {
        expect(await places(page)).toEqual([4, 4, 4, 4])
        await page.getByRole('button', { name: 'Next step' }).click()
        expect(await places(page)).toEqual([5, 5, 5, 5])
        expect(await page.getByRole('button', { name: 'Last step' }).isEnabled()).toBe(true)
        await page.locator('.box').nth(1).click()
        expect(await places(page)).toEqual([2, 2, 2, 2])
        await page.locator('.aside').click() // what step 5 did to alice
        expect(await places(page)).toEqual([5, 5, 5, 5])
        await detail(page).getByRole('link', { name: 'step 1', exact: true }).click()
        expect(await places(page)).toEqual([1, 1, 1, 1])
        await page.getByRole('button', { name: 'Last step' }).click()
        expect(await page.getByRole('button', { name: 'Next step' }).isDisabled()).toBe(true)
      },
      { hash: '#step=4' },
    )
    await withPageOpen(browser, page, async ({ page }) => expect((await places(page))[0]).toBe(6), {
      hash: '#step=99',
    })
    await withPageOpen(browser, page, async ({ page }) => expect((await places(page))[0]).toBe(1), {
      hash: '#step=x',
    })
  })

  it('tells in the panel all that is known of a step', async () => {
    const report = everything()
    await withPageOpen(browser, explorePage(report), async ({ page }) => {
      const texts: string[] = []
      for (const _ of report.race?.steps ?? []) {
        texts.push(((await detail(page).innerText()) ?? '').replace(/\s+/g, ' '))
        await page.keyboard.press('ArrowRight')
      }
      const [total, update, bob, carol, commit, lost] = texts
      expect(total).toContain('stops at ‘a is read’')
      expect(total).toContain('alice ✓ alice/2 bob carol Not dave, who only asks the same again and again.')
      expect(update).toContain('carol waits for a connection of its pool (all 2 in use) dave waits for')
      expect(update).toContain('bob waits for it from step 3 on: row lock, stock')
      expect(bob).toContain('waits for alice/2 (row lock, stock) until step 5, alice/2’s')
      expect(carol).toContain('waits for bob and process 7 (row lock, stock) and never goes on')
      expect(commit).toContain('bob step 3 goes on ✕ ERROR 40001 could not serialize access')
      expect(commit).toContain('carol step 4 now waits for alice (row lock, stock)')
      expect(commit).toContain('Waited for it before 2 statements')
      expect(lost).toContain('✕ its connection is gone')
    })
    await withPageOpen(browser, explorePage(lastLamp()), async ({ page }) => {
      const text = await detail(page).innerText()
      expect(text).toContain('begin; select amount\nfrom stock\nwhere sku = $1') // whole, as it was written
      expect(text).toMatch(/\$1\s+lamp/)
      expect(text).toContain(`set local work_mem = '8MB'`)
      expect(text).toContain('does not see what bob commits only in step 5: stock (lamp)')
      expect(await page.locator('.turn:visible').allInnerTexts()).toEqual([
        'here it goes wrong: bob comes between',
      ])
    })
  })

  it('draws each link as an arrow, which stands out while one of its steps is the current one', async () => {
    const classes = (page: Page, selector: string) =>
      page.evaluate(`[...document.querySelectorAll('${selector}')].map((e) => e.parentElement.classList[0])`)
    await withPageOpen(browser, explorePage(lastLamp()), async ({ page }) => {
      for (const width of [1400, 390]) {
        await page.setViewportSize({ width, height: 844 })
        await page.keyboard.press('Home')
        await expect
          .poll(() => classes(page, '.link:not(.sample *)'), soon)
          .toEqual(['blocks', 'frees', 'misses', 'reads'])
        await expect.poll(() => classes(page, '.link.now'), soon).toEqual(['misses'])
        await page.keyboard.press('End')
        expect(await classes(page, '.link.now')).toEqual([])
      }
    })
  })

  it('shows a wait as a bar from the step that waits to the one that ends it', async () => {
    await withPageOpen(browser, explorePage(lastLamp()), async ({ page }) => {
      const bar = await page.locator('.pause.waits').boundingBox()
      const box = await page.locator('.box').nth(3).boundingBox()
      const end = await page.locator('.aside').boundingBox()
      const edge = (b: typeof bar) => (b ? b.y + b.height : Number.NaN)
      expect(bar?.y).toBeLessThanOrEqual(edge(box))
      expect(edge(bar)).toBeGreaterThan(end?.y ?? Number.NaN)
      expect(edge(bar)).toBeLessThan(edge(end))
    })
  })

  describe.each(Object.entries(reports))('of the report %s', (name, report) => {
    it('fits phones, tablets and desks, and keeps to itself', async () => {
      await withPageOpen(browser, explorePage(report), async ({ page, faults }) => {
        for (const width of [320, 390, 820, 1400]) {
          await page.setViewportSize({ width, height: 844 })
          expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width)
        }
        expect(faults).toEqual([])
      })
    })

    it.each(['light', 'dark'] as const)(
      'can be read in %s, and in the other by its button',
      async (colorScheme) => {
        await withPageOpen(
          browser,
          explorePage(report),
          async ({ page }) => {
            const paper = () => page.evaluate('getComputedStyle(document.body).backgroundColor')
            const before = await paper()
            for (const width of [1400, 390]) {
              await page.setViewportSize({ width, height: 844 })
              expect(await findLowContrast(page)).toEqual([])
            }
            await page.getByRole('button', { name: colorScheme === 'light' ? 'Dark' : 'Light' }).click()
            expect(await paper()).not.toBe(before)
            expect(await findLowContrast(page)).toEqual([])
          },
          { colorScheme },
        )
      },
    )

    it('is complete without its script', async () => {
      await withPageOpen(
        browser,
        explorePage(report),
        async ({ page }) => {
          expect(await page.locator('.box').count()).toBe(report.race?.steps.length ?? 0)
          expect(await page.locator('.summary').innerText()).toBe(report.summary)
        },
        { javaScriptEnabled: false },
      )
    })

    if (name === 'passed')
      it('has figures and notes, and no schedule', async () => {
        await withPageOpen(browser, explorePage(report), async ({ page }) => {
          expect(await page.locator('h1').innerText()).toBe('No violation')
          expect(await page.locator('.notes').innerText()).toContain('total() runs as one step.')
          expect(await page.locator('.figures').innerText()).toContain('every distinguishable schedule')
          expect(await page.locator('.lanes, .panel, .replay').count()).toBe(0)
        })
      })
  })

  it('keeps the step in sight above the panel on a phone', async () => {
    await withPageOpen(
      browser,
      explorePage(long()),
      async ({ page }) => {
        for (const key of [...Array(12).fill('ArrowRight'), 'End', 'Home', 'End']) {
          await page.keyboard.press(key)
          const box = await current(page).boundingBox()
          const panel = await page.locator('.panel').boundingBox()
          expect(box?.y, key).toBeGreaterThanOrEqual(0)
          expect((box?.y ?? 0) + (box?.height ?? 0), key).toBeLessThanOrEqual(panel?.y ?? 0)
        }
      },
      { viewport: { width: 390, height: 844 } },
    )
  })

  it('has no schedule and no string to replay where nobody came to a step', async () => {
    await withPageOpen(browser, explorePage(madeReport([])), async ({ page, faults }) => {
      expect(await page.locator('.lanes, .panel, [data-copy]').count()).toBe(0)
      expect(await page.locator('.failure').innerText()).toContain('amount is -1')
      await page.locator('summary').click()
      expect(await page.locator('.printout pre').innerText()).toContain('Race found in schedule 3')
      expect(faults).toEqual([])
    })
  })

  it('copies the string that runs it again', async () => {
    await withPageOpen(
      browser,
      explorePage(lastLamp()),
      async ({ page }) => {
        await page.getByRole('button', { name: 'Copy' }).click()
        await expect.poll(() => page.locator('[data-copy]').innerText(), soon).toBe('Copied')
        expect(await page.evaluate('navigator.clipboard.readText()')).toBe('DIBS_REPLAY=v1:abba:01020304')
      },
      { permissions: ['clipboard-read', 'clipboard-write'] },
    )
  })

  it('takes what users wrote for text, wherever it stands', async () => {
    const evil = `${'long'.repeat(60)}</script></style><script>alert(1)</script><img src=x onerror=alert(2)>"' onclick='alert(3)' x="`
    const steps = [
      madeStep(evil, `select '${evil}' -- ${evil}`, rows('SELECT 1', [evil, null]), {
        values: [evil],
        settings: [`set x = '${evil}'`],
        options: [evil, `${evil}/2`],
        loops: evil,
        poolWaits: { [evil]: evil },
      }),
      madeStep(`${evil}/2`, evil, waitsFor(evil)),
      madeStep(evil, '… goes on', failed(evil, evil), {
        resumed: [{ unit: `${evil}/2`, effect: { kind: 'point', name: evil } }],
      }),
    ]
    const made = madeReport(steps, {
      links: [{ kind: 'misses', from: 2, to: 0, what: evil }],
      anomaly: { name: evil, explanation: evil },
      failure: { name: evil, message: evil },
      printout: evil,
      replay: evil,
    })
    const report = { ...made, summary: evil, notes: [evil], isolation: evil, actors: [evil] }
    await withPageOpen(browser, explorePage(report), async ({ page, faults }) => {
      for (const box of await page.locator('.box').all()) await box.click()
      expect(await page.locator('img, script:not([src])').count()).toBe(4) // ours
      expect(await page.locator('.summary').innerText()).toBe(evil)
      expect(await page.locator('.box').first().innerText()).toContain(evil.slice(0, 20))
      expect(await page.title()).toContain(evil.slice(0, 20))
      for (const width of [320, 1400]) {
        await page.setViewportSize({ width, height: 844 })
        expect(await page.evaluate('document.documentElement.scrollWidth')).toBeLessThanOrEqual(width)
      }
      expect(faults).toEqual([])
    })
  })
})
