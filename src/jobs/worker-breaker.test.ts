import { expect, it } from 'vitest'
import { openDatabase } from '../../test/open-database.js'
import { realTime } from '../../test/real-time.js'
import { until } from '../../test/until.js'
import { CircuitBreaker } from '../postgres/circuit-breaker.js'
import { Wakeups } from '../postgres/wakeups.js'
import { Engine, workerBreaker } from './engine.js'
import { readHandlers } from './handlers.js'
import { resolveDefinition } from './job-definition.js'
import { startWorker } from './start-worker.js'

it(
  'claims again as soon as the database answers anything, though the breaker is open for half a minute',
  realTime,
  async () => {
    const database = await openDatabase()
    const wakeups = new Wakeups(database, { listen: false })
    const engine = new Engine(database, wakeups)
    let runs = 0
    const handled = readHandlers(database.schema, new Map([['quick', resolveDefinition('quick', {})]]), {
      quick: () => void runs++,
    })
    const worker = startWorker(engine, [handled], { pollMs: 100 })
    try {
      await worker.ready
      // A call in flight when the breaker opens may close it at once.
      await until(async () => {
        while (engine.breaker.state !== 'open') engine.breaker.fail()
        engine.notifyQueues(['default']) // the fetcher finds the breaker open
        await new Promise((resolve) => setTimeout(resolve, 20))
        return engine.breaker.state === 'open'
      }, 'the breaker to stay open')
      await until(() => engine.breaker.state === 'closed', 'the maintenance to be answered')
      const from = performance.now()
      await database.pool.query(`select ${database.schema}.add_job('quick')`)
      await until(() => runs === 1, 'the job to run')
      expect(performance.now() - from).toBeLessThan(5_000)
    } finally {
      await worker.stop()
      engine.close()
      await wakeups.close()
      await database.drop()
    }
  },
)

it('opens after five failures in a row, and lets three at a time try after half a minute', () => {
  let now = 0
  const breaker = new CircuitBreaker({ ...workerBreaker, now: () => now })
  for (let n = 0; n < 4; n++) expect(breaker.fail()).toBe(false)
  expect(breaker.state).toBe('closed')
  expect(breaker.fail()).toBe(true)
  expect(breaker.enter()).toBe(30_000)
  now = 30_000
  expect([1, 2, 3, 4].map(() => breaker.enter())).toEqual([0, 0, 0, 1_000])
  expect(breaker.fail()).toBe(false)
  expect(breaker.state).toBe('open')
  expect(breaker.succeed()).toBe(true)
  expect(breaker.state).toBe('closed')
})
