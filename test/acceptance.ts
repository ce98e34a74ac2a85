import { describe, expect, it } from 'vitest'
import { explore } from '../src/testing/explore/explore.js'
import { isDeep } from './depth.js'
import { exploredSchema } from './explored-schema.js'
import { cases, optionsOf, tables } from './races.js'

/**
 * Checks the explorer's verdict on each piece of code, with two actors and with three. It must run every schedule; if three
 * actors have too many, those with at most two preemptions in the soak and one otherwise. All runs must find the same
 * schedule.
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
      const replays = new Set<string | undefined>()
      for (let run = 0; run < runs; run++) {
        const report = await explore({ url, ...optionsOf(one, actors), bound, throws: false })
        expect(report.verdict, report.race?.printout ?? report.summary).toBe(verdict)
        expect(report.race?.isSerial ?? false).toBe(false)
        if (!one.isWrong)
          expect('preemptions' in bound ? report.isComplete : report.isExhaustive, report.summary).toBe(true)
        replays.add(report.race?.replay)
      }
      expect(replays.size).toBe(1)
    })
  })
}
