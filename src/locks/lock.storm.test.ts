import { expect, it } from 'vitest'
import { openClaims } from '../../test/claims/open-claims.js'
import { freshName, url } from '../../test/database.js'
import { lockStorm } from '../../test/locks/lock-storm.js'

const fixture = openClaims()
const soakSeconds = Number(process.env.SOAK_SECONDS ?? 0)
const seconds = soakSeconds ? Math.max(soakSeconds, 60) : 5
const atLeast = soakSeconds ? 100 : 5

it.each([
  ['hold the lock', 'lock'],
  ['lead', 'elect'],
] as const)(
  'keeps every count of eight processes that are killed and stopped while they %s',
  async (_, way) => {
    const seed = Number(process.env.STORM_SEED ?? Math.floor(Math.random() * 2 ** 31))
    console.log(`STORM_SEED=${seed}`)
    const world = freshName('world')
    const { pool, schema } = fixture
    await pool.query(`create schema ${world}; create table ${world}.counter (n integer not null);
    create table ${world}.history (n integer not null, fence bigint not null); insert into ${world}.counter values (0)`)
    try {
      const report = await lockStorm({ pool, url, schema: schema.name, world, seconds, atLeast, seed, way })
      console.log(JSON.stringify(report))
      expect(report.problems).toEqual([])
      const { rows } = await pool.query(`select
      (select n from ${world}.counter) as n,
      (select count(*)::int from ${world}.history) as commits,
      (select count(*)::int from (select fence, lag(fence) over (order by n, fence) as before from ${world}.history) h
        where fence <= before) as "goBack"`)
      // No update is lost: as many as have committed, each under a later fence than the one before.
      expect(rows).toEqual([{ n: rows[0].commits, commits: rows[0].commits, goBack: 0 }])
      expect(rows[0].commits).toBeGreaterThanOrEqual(report.counted)
      // Else nothing was tested.
      for (const { fault, hits, takeovers, refused } of report.counts) {
        expect([fault, hits]).toEqual([fault, Math.max(hits, atLeast)])
        expect([fault, takeovers]).toEqual([fault, Math.max(takeovers, atLeast)])
        if (fault === 'SIGSTOP') expect([fault, refused]).toEqual([fault, Math.max(refused, atLeast)])
      }
      expect(report.refusedByServer).toBeGreaterThan(0)
    } finally {
      await pool.query(`drop schema ${world} cascade`)
    }
  },
  3_600_000,
)
