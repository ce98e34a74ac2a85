import pg from 'pg'
import { expect, it } from 'vitest'
import { bankStorm, TOTAL } from '../../test/bank-storm.js'
import { url, viaPgBouncer } from '../../test/database.js'
import { openDatabase } from '../../test/open-database.js'
import { PgProxy } from '../testing/index.js'

// Behind PgBouncer it is PgBouncer's connections that are killed, while the clients keep theirs: another path.
it('tells every caller the truth while backends are killed and answers to COMMIT are lost', async () => {
  await using proxy = await PgProxy.start({ url })
  const pool = new pg.Pool({ connectionString: proxy.url })
  const database = await openDatabase({ pool })
  const seconds = Number(process.env.SOAK_SECONDS ?? 4)
  const report = await bankStorm(database, proxy, seconds)
  console.log(viaPgBouncer ? 'through PgBouncer' : 'direct', report)
  expect(report.lies).toEqual([])
  expect(report.total).toBe(TOTAL)
  // Else nothing was tested.
  expect(report.kept).toBeGreaterThan(100)
  expect(report.retries).toBeGreaterThan(10)
  expect(report.kills).toBeGreaterThan(10)
  expect(report.refused).toBeGreaterThan(0)
  expect(report.unknownButKept).toBeGreaterThan(0)
  await database.drop()
  await pool.end()
}, 3_600_000)
