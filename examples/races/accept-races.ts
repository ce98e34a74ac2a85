import { type ExploreReport, explore } from 'dibs/testing'
import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../test/explored-schema.js'
import { loadRace, topics } from './index.js'
import type { Race } from './race.js'

/** What the explorer said of each variant, in order. */
export interface ExploredRace {
  readonly id: string
  readonly race: Race
  readonly reports: ExploreReport[]
}

/** What the explorer must say of each variant, so many times in a row, down to the schedule it shows. */
export async function acceptRaces(runs: number): Promise<ReadonlyMap<string, ExploredRace>> {
  const explored = new Map<string, ExploredRace>()
  for (const id of topics.flatMap(({ races }) => races)) {
    const one: ExploredRace = { id, race: await loadRace(id), reports: [] }
    explored.set(id, one)
    describe(id, () => acceptRace(one, runs))
  }
  return explored
}

function acceptRace({ race, reports }: ExploredRace, runs: number): void {
  const { url } = exploredSchema(race.tables)

  it.each(race.variants)('$name: $verdict', { timeout: 20_000 * runs }, async (variant) => {
    const { verdict, actors, setup, invariant, isolation, mayFail, isSerial } = variant
    const replays = new Set<string | undefined>()
    for (let run = 0; run < runs; run++) {
      const report = await explore({
        url,
        actors,
        setup: setup ?? race.setup,
        invariant: invariant ?? race.invariant,
        isolation,
        mayFail,
        throws: false,
      })
      const shown = report.race?.printout ?? report.summary
      expect(report.verdict, shown).toBe(verdict)
      if (verdict === 'passed') expect(report.isExhaustive, shown).toBe(true)
      else expect(report.race?.isSerial, shown).toBe(isSerial ?? false)
      replays.add(report.race?.replay)
      if (run === 0) reports.push(report)
    }
    expect([...replays], 'the same schedule each time').toHaveLength(1)
  })
}
