import { expect, it } from 'vitest'
import { startCrashingServer } from '../../test/jobs/crashing-server.js'
import { jobStorm } from '../../test/jobs/job-storm.js'

const isSoak = Boolean(process.env.SOAK_SECONDS)
const jobs = isSoak ? 20_000 : 2_000
const atLeast = isSoak ? 100 : 10

it('records each end once, from eight processes that are killed, stopped and cut off while the server crashes', async () => {
  const seed = Number(process.env.STORM_SEED ?? Math.floor(Math.random() * 2 ** 31))
  console.log(`STORM_SEED=${seed}`)
  const server = await startCrashingServer()
  try {
    const { counts, problems, ...rest } = await jobStorm({ server, seed, jobs, atLeast })
    console.table(counts)
    console.log(JSON.stringify(rest))
    expect(problems).toEqual([])
    // Else nothing was tested.
    for (const { fault, hits, takeovers, refused } of counts) {
      const found: Record<string, number> = { hits }
      if (fault === 'SIGKILL' || fault === 'SIGSTOP') found.takeovers = takeovers
      if (fault === 'SIGSTOP') found.refused = refused
      for (const [what, count] of Object.entries(found))
        expect(count, `${fault}: ${what}`).toBeGreaterThanOrEqual(atLeast)
    }
  } finally {
    await server.stop()
  }
}, 3_600_000)
