import { expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { url } from '../../test/database.js'
import { flightStorm } from '../../test/single-flight/flight-storm.js'

const fixture = openClaims()
const isSoak = Boolean(process.env.SOAK_SECONDS)

it('a hundred readers in eight processes load once, and twice if whoever loads first is killed', async () => {
  const many = isSoak ? { rounds: 100, killed: 20 } : { rounds: 2, killed: 3 }
  const { rounds, killed } = await flightStorm({ url, schema: fixture.schema.name, leaseMs: 2_000, ...many })
  expect([rounds.length, killed.length]).toEqual([many.rounds, many.killed])
  for (const round of rounds) expect(round).toEqual({ loads: 1, readers: 100, fences: 1, problems: [] })
  for (const round of killed) {
    expect(round).toMatchObject({ loads: 2, fences: 1, problems: [] })
    // The readers in the killed process are gone.
    expect([87, 88]).toContain(round.readers)
  }
}, 600_000)
