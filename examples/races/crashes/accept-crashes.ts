import { type CrashReport, crashLoop } from 'dibs/testing'
import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { type Crash, optionsOf } from './crash.js'
import { crashes } from './index.js'
import { shown } from './page.js'

/** A crash and what the loop said of its variants, in their order. */
export interface TriedCrash {
  readonly id: string
  readonly crash: Crash
  readonly reports: CrashReport[]
}

/**
 * What the crash loop must say of each variant, so many times in a row, down to the point it shows. The reports of what is
 * returned are there when the tests have run.
 */
export async function acceptCrashes(runs: number): Promise<readonly TriedCrash[]> {
  const tried: TriedCrash[] = []
  for (const [id, load] of Object.entries(crashes)) tried.push({ id, reports: [], ...(await load()) })
  describe.each(tried)('$id', (one) => acceptCrash(one, runs))
  return tried
}

function acceptCrash({ id, crash, reports }: TriedCrash, runs: number): void {
  const { url } = exploredSchema(crash.tables)

  it.each(crash.variants)('$name fails at: $failsAt', { timeout: 30_000 * runs }, async (variant) => {
    const stories = new Set<string>()
    for (let run = 0; run < runs; run++) {
      const report = await crashLoop({ ...optionsOf(crash, variant), name: `${id}: ${variant.name}`, url })
      const failed = report.points.find(({ verdict }) => verdict === 'failed')
      expect(failed?.replay ?? null, report.printout).toBe(variant.failsAt)
      stories.add(shown(report))
      if (run === 0) reports.push(report)
    }
    expect([...stories], 'the same each time').toHaveLength(1)
  })
}
