import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest'
import { lastLamp } from '../../../../test/made-race.js'
import type { ExploreReport } from './report.js'
import { withPage } from './write-page.js'

let folder = ''
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'dibs-pages-'))
})
afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(folder, { recursive: true })
})

const race = lastLamp()
const passed: ExploreReport = { ...race, verdict: 'passed', summary: 'No violation.', race: undefined }
const actors = {}

describe('the page of a report', () => {
  it('is written to the file that `page` names, for a race and for a success, and the printout ends with that file', async () => {
    const page = join(folder, 'deep/race.html')
    const report = await withPage(race, { actors, page })
    expect(report.page).toBe(page)
    expect(report.race?.printout.split('\n').at(-1)).toBe(`  Page: ${page}`)
    expect(readFileSync(page, 'utf8')).toContain('amount is -1')
    expect(await withPage(passed, { actors, page })).toEqual({ ...passed, page })
    expect(readFileSync(page, 'utf8')).toContain('No violation.')
  })

  it('is written for each race to the folder of DIBS_REPORT, the same race to the same file', async () => {
    vi.stubEnv('DIBS_REPORT', join(folder, 'pages'))
    const { page } = await withPage(race, { actors })
    expect(page).toMatch(/pages.alice-bob-[0-9a-f]{8}\.html$/)
    expect((await withPage(race, { actors })).page).toBe(page)
    const other = lastLamp()
    const fewer = { ...other, race: { ...other.race, steps: other.race?.steps.slice(1) } } as ExploreReport
    await withPage(fewer, { actors })
    expect(await withPage(passed, { actors })).toBe(passed)
    expect(readdirSync(join(folder, 'pages'))).toHaveLength(2)
  })

  it('is not written unless the options or the environment want it', async () => {
    vi.stubEnv('DIBS_REPORT', '')
    expect(await withPage(race, { actors })).toBe(race)
  })

  it('is replaced by a note if it cannot be written, and the race is reported all the same', async () => {
    const file = join(folder, 'file')
    writeFileSync(file, '')
    const report = await withPage(race, { actors, page: join(file, 'race.html') })
    expect(report.page).toBeUndefined()
    expect(report.notes).toEqual([expect.stringContaining('The page could not be written: ')])
    expect(report.race?.printout).toContain('\n  Note: The page could not be written: ')
  })

  it.each(['../../../etc', 'a<b>|c', '..'])('has a harmless name for actors called %j', async (name) => {
    vi.stubEnv('DIBS_REPORT', folder)
    await withPage({ ...race, actors: [name] }, { actors })
    expect(readdirSync(folder)).toEqual([expect.stringMatching(/^[\w-]+\.html$/)])
  })
})
