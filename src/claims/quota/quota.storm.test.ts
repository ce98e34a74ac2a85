import { expect, it } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { kinds, quotaStorm } from '../../../test/claims/quota-storm.js'
import { freshName, url } from '../../../test/database.js'

const fixture = openClaims()
const soakSeconds = Number(process.env.SOAK_SECONDS ?? 0)
const seconds = soakSeconds || 5

it('is never exceeded by eight processes that are killed, and all of it can be had', async () => {
  const seed = Number(process.env.STORM_SEED ?? Math.floor(Math.random() * 2 ** 31))
  console.log(`STORM_SEED=${seed}`)
  const awards = freshName('awards')
  const { pool, dibs } = fixture
  await pool.query(`create table ${awards} (quota text not null, id text not null, amount int not null)`)
  try {
    const { problems, ...report } = await quotaStorm({ dibs, pool, url, awards, seconds, seed })
    console.log(JSON.stringify(report))
    expect(problems).toEqual([])
    // Else nothing was tested.
    expect(report.kills).toBeGreaterThan(2)
    for (const kind of kinds) expect(report.counts[`${kind} done`], kind).toBeGreaterThan(0)
    expect(report.counts['take refused']).toBeGreaterThan(0)
  } finally {
    await pool.query(`drop table ${awards}`)
  }
}, 3_600_000)
