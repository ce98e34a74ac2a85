import { expect, it } from 'vitest'
import { deferred } from '../../test/deferred.js'
import type { Health } from '../ops/health.js'
import { Probes } from './probes.js'

it('asks the database once for all who ask at the same time, and anew for the next', async () => {
  const probes = new Probes()
  const answer = deferred<Health>()
  let asked = 0
  probes.opened({
    health: () => {
      asked++
      return answer.promise
    },
  })
  const waiting = [probes.healthz(), probes.readyz(), probes.healthz()]
  expect(asked).toBe(1)
  answer.resolve({
    ok: true,
    database: 'reachable',
    latencyMs: 1,
    schema: 'dibs',
    schemaVersion: 1,
    problem: undefined,
  })
  expect((await Promise.all(waiting)).map(({ status }) => status)).toEqual([200, 200, 200])
  await probes.healthz()
  expect(asked).toBe(2)
})
