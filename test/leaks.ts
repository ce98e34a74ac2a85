import pg from 'pg'
import { afterAll, expect, vi } from 'vitest'
import { runCleanups } from './after-file.js'
import { directUrl, freshName, until, viaPgBouncer } from './database.js'
import { pendingTimers, watchTimers } from './watch-timers.js'

watchTimers()

/** A timer that code under test leaves running fails the file: it would keep a process from ending, or do something late. */
afterAll(async () => {
  // A statement of an actor whose schedule diverged gets no answer: it ends after a minute.
  await until(() => pendingTimers().length === 0, 'timers of this file to end', 70_000).catch(() => {})
  expect(pendingTimers(), 'timers left running by this file').toEqual([])
}, 90_000)

// pg and libpq take the name from here; child processes inherit it.
process.env.PGAPPNAME = freshName('dibs_test')

/** A connection that a test file leaves open fails it. */
afterAll(async () => {
  if (viaPgBouncer) return // there the server's connections belong to PgBouncer
  const name = process.env.PGAPPNAME
  const client = new pg.Client({ connectionString: directUrl, application_name: 'dibs_test_leaks' })
  await client.connect()
  try {
    const left = async () => {
      const { rows } = await client.query(
        'select state, query from pg_stat_activity where application_name = $1',
        [name],
      )
      return rows
    }
    await until(async () => (await left()).length === 0, 'connections of this file to close').catch(() => {})
    expect(await left(), 'connections left open by this file').toEqual([])
  } finally {
    await client.end()
  }
})

// Files may share a process, so each leaves it as it was. Vitest runs these hooks first: the last one that was registered comes first.
const globalState = (): unknown => ({
  env: { ...process.env, VITEST_POOL_ID: undefined, VITEST_WORKER_ID: undefined },
  cwd: process.cwd(),
  parsers: Array.from({ length: 4_000 }, (_, type) => pg.types.getTypeParser(type)),
})
const before = globalState()
afterAll(() => {
  vi.restoreAllMocks()
  expect(globalState(), 'environment, folder and type parsers of the process').toEqual(before)
})
afterAll(runCleanups)
