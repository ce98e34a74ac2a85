import { explore } from 'dibs/testing'
import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../test/explored-schema.js'
import { topics } from './index.js'
import { schemaOf } from './race.js'

const races = await Promise.all(
  topics.flatMap((topic) =>
    Object.entries(topic.races).map(async ([id, load]) => ({ id, race: (await load()).race })),
  ),
)

describe.each(races)('no schedule of right code has a name: $id', ({ race }) => {
  const { url } = exploredSchema(schemaOf(race))
  const right = race.variants.filter(({ verdict }) => verdict === 'passed')

  it.each(right)('$name', { timeout: 120_000 }, async ({ actors, isolation, mayFail, ...variant }) => {
    // Taken one by one, as if each went wrong.
    for (let wrong = 1; ; wrong++) {
      let calls = 0
      const report = await explore({
        url,
        actors,
        setup: variant.setup ?? race.setup,
        invariant: () => ++calls < wrong,
        isolation,
        mayFail,
        throws: false,
      })
      if (!report.race) break
      expect(report.race.anomaly, report.race.printout).toBeUndefined()
    }
  })
})
