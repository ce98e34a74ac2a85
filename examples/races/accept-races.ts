import { explore } from 'dibs/testing'
import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../test/explored-schema.js'
import { topics } from './index.js'
import { type ExploredRace, type ExploredTopic, shown } from './page.js'
import { schemaOf } from './race.js'

/**
 * What the explorer must say of each variant, so many times in a row, down to the schedule it shows. The reports of what is
 * returned are there when the tests have run.
 */
export async function acceptRaces(runs: number): Promise<readonly ExploredTopic[]> {
  const explored: ExploredTopic[] = []
  for (const { title, races } of topics) {
    const ones: ExploredRace[] = []
    for (const [id, load] of Object.entries(races)) ones.push({ id, reports: [], ...(await load()) })
    explored.push({ title, races: ones })
  }
  describe.each(explored.flatMap(({ races }) => races))('$id', (one) => acceptRace(one, runs))
  return explored
}

function acceptRace({ id, race, reports }: ExploredRace, runs: number): void {
  const { url } = exploredSchema(schemaOf(race))

  it.each(race.variants)('$name: $verdict', { timeout: 20_000 * runs }, async (variant) => {
    const { verdict, actors, isolation, mayFail } = variant
    const stories = new Set<string>()
    for (let run = 0; run < runs; run++) {
      const report = await explore({
        url,
        name: `${id}: ${variant.name}`,
        actors,
        setup: variant.setup ?? race.setup,
        invariant: variant.invariant ?? race.invariant,
        isolation,
        mayFail,
        throws: false,
      })
      const story = shown(report)
      expect(report.verdict, story).toBe(verdict)
      if (verdict === 'passed') expect(report.isExhaustive, story).toBe(true)
      else expect(report.race?.isSerial, story).toBe(variant.isSerial ?? false)
      stories.add(story)
      if (run === 0) reports.push(report)
    }
    expect([...stories], 'the same each time, down to the schedule and its replay string').toHaveLength(1)
  })
}
