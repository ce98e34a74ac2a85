import assert from 'node:assert/strict'
import { it } from 'vitest'
import type { Attempt } from './attempt.js'
import { Ender } from './ender.js'
import type { Engine } from './engine.js'
import { completeJobs } from './job-statements.js'

const attemptOf = (id: number, fence: number): Attempt => ({ job: { id, fence, keepDays: 7 } }) as Attempt

it('of one job one end at a time is sent: an answer that names the job is of that one', async () => {
  const sent: unknown[] = []
  const engine = {
    isOver: false,
    onAnswer() {},
    ends: {
      async send(statement: unknown, [ids, fences]: string[]) {
        assert.equal(statement, completeJobs)
        sent.push([ids, fences])
        // The claim with fence 2 is the one that holds.
        return [{ told: fences === '{2}' ? null : '{"done": [6], "locked": []}' }]
      },
    },
    database: {
      pool: { idleCount: 1 },
      async sendPart(_: unknown, [, fence]: string[]) {
        return [{ state: fence === '2' ? 'done' : 'lost' }]
      },
    },
  }
  const ender = new Ender(engine as unknown as Engine)
  const complete = (attempt: Attempt, result: string | null) =>
    new Promise((resolve) => ender.end(attempt, undefined, result, resolve))
  const states = await Promise.all([
    complete(attemptOf(5, 1), '"stale"'),
    complete(attemptOf(5, 2), '"good"'),
    complete(attemptOf(6, 2), null),
  ])
  assert.deepEqual(states, ['lost', 'done', 'done'])
  assert.deepEqual(sent, [
    ['{5,6}', '{1,2}'],
    ['{5}', '{2}'],
  ])
})
