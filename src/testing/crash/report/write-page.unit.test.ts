import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { madeCrash, madeLine, madePoint } from '../../../../test/made-crash.js'
import type { CrashReport } from './report.js'
import { withPage } from './write-page.js'

let folder = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'dibs-pages-'))
})
afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(folder, { recursive: true })
})

const run = () => {}

function failed(replay: string, value = '1'): CrashReport {
  const story = [madeLine('run', 1, 'select $1', undefined, { values: [value] })]
  const failure = { kind: 'invariant', message: `2 events, at ${value}` } as const
  return madeCrash([madePoint('none', story), madePoint(replay, story, { failure })])
}
const harm = failed('crash:after-1')
const passed = madeCrash([madePoint('none', []), madePoint('crash:after-1', [])])

describe('the page of a crash report', () => {
  it('is written where `page` says, of harm and of none, and the printout ends with its place', async () => {
    const page = join(folder, 'deep/crash.html')
    for (const report of [harm, passed]) {
      const written = await withPage(report, { run, page })
      expect(written).toEqual({ ...report, page, printout: `${report.printout}\n\nPage: ${page}` })
      expect(readFileSync(page, 'utf8')).toContain(report.summary)
    }
  })

  it('is written for each that failed to the folder of DIBS_REPORT, the same harm to the same file', async () => {
    vi.stubEnv('DIBS_REPORT', join(folder, 'pages'))
    const { page } = await withPage(harm, { run })
    expect(page).toMatch(/pages.crash-[0-9a-f]{8}\.html$/)
    // Another value, and with it another message, is no other harm.
    expect((await withPage(failed('crash:after-1', '2'), { run })).page).toBe(page)
    await withPage(failed('zombie:after-1'), { run })
    expect(await withPage(passed, { run })).toBe(passed)
    expect(readdirSync(join(folder, 'pages'))).toHaveLength(2)
  })

  it('goes nowhere unless asked for', async () => {
    vi.stubEnv('DIBS_REPORT', '')
    expect(await withPage(harm, { run })).toBe(harm)
  })

  it('is a note if it cannot be written: the harm is told all the same', async () => {
    const file = join(folder, 'file')
    writeFileSync(file, '')
    const report = await withPage(harm, { run, page: join(file, 'crash.html') })
    expect(report.page).toBeUndefined()
    expect(report.notes).toEqual([expect.stringContaining('The page could not be written: ')])
    expect(report.printout).toContain('\n\nNote: The page could not be written: ')
  })
})
