import { expect, it } from 'vitest'
import { freshName, url } from '../../../test/database.js'
import { describeStorm, findShortfalls } from '../../../test/once-storm/describe-storm.js'
import type { StormReport } from '../../../test/once-storm/storm-report.js'
import { onceStorm } from '../../../test/once-storm.js'

const soakSeconds = Number(process.env.SOAK_SECONDS ?? 0)
const seconds = soakSeconds ? Math.max(soakSeconds, 120) : 10
const minimum = soakSeconds ? 100 : 10

/** On a busy machine, leases expire before a process has connected anew. Then fewer faults have their effect. */
const MAX_STORMS = soakSeconds ? 1 : 4

it('has one effect per key and equal answers, from eight processes that are killed, stopped and cut off', async () => {
  const seed = Number(process.env.STORM_SEED ?? Math.floor(Math.random() * 2 ** 31))
  const reports: StormReport[] = []
  do {
    console.log(`STORM_SEED=${seed + reports.length}`)
    // At most a little is missing after the first.
    const share = reports.length === 0 ? 1 : 0.4
    const report = await onceStorm({
      url,
      schema: freshName('storm'),
      world: freshName('world'),
      seed: seed + reports.length,
      calls: 500 * seconds * share,
      keys: 25 * seconds * share,
      seconds,
      callsPerFault: soakSeconds ? 90 : 64,
    })
    console.log(describeStorm(report))
    expect(report.problems).toEqual([])
    reports.push(report)
  } while (findShortfalls(reports, minimum).length > 0 && reports.length < MAX_STORMS)
  // Otherwise, the test has tested nothing.
  expect(findShortfalls(reports, minimum)).toEqual([])
}, 3_600_000)
