import { describe, expect, it } from 'vitest'
import { explore } from '../src/testing/explore/explore.js'
import { isDeep } from './depth.js'
import { exploredSchema } from './explored-schema.js'
import { cases, optionsOf, tables } from './races.js'

/**
 * What the explorer must say of each piece of code, with two actors and with three, in every schedule; where
 * there are too many, with three up to two preemptions, or one where somebody waits for it. And the same so many times in a row, down to the schedule it shows.
 */
export function acceptExplorer(runs: number): void {
  const { url } = exploredSchema(tables)

  describe.each(cases)('$name', (one) => {
    const verdict = one.isWrong ? 'race' : 'passed'

    it.each([
      { actors: 2, bound: {} },
      {
        actors: 3,
        bound: {
          schedules: 3_000,
          random: 0,
          ...(one.isLarge || one.isolation === 'serializable' ? { preemptions: isDeep ? 2 : 1 } : {}),
        },
      },
    ])(`${verdict} with $actors actors`, { timeout: 60_000 * runs }, async ({ actors, bound }) => {
      const stories = new Set<string | undefined>()
      for (let run = 0; run < runs; run++) {
        const report = await explore({ url, ...optionsOf(one, actors), bound, throws: false })
        expect(report.verdict, report.race?.printout ?? report.summary).toBe(verdict)
        expect(report.race?.isSerial ?? false).toBe(false)
        if (!one.isWrong)
          expect('preemptions' in bound ? report.isComplete : report.isExhaustive, report.summary).toBe(true)
        stories.add(report.race?.replay)
      }
      expect(stories.size).toBe(1)
    })
  })
}
