import assert from 'node:assert/strict'
import { it } from 'vitest'
import type { Attempt } from './attempt.js'
import { Completer } from './completer.js'
import type { Engine } from './engine.js'
import { completeJobs } from './job-statements.js'

const attemptOf = (id: number, fence: number): Attempt => ({ job: { id, fence, keepDays: 7 } }) as Attempt

it('sends one outcome of a job at a time, because answers name jobs', async () => {
  const sent: unknown[] = []
  const engine = {
    isOver: false,
    onAnswer() {},
    outcomes: {
      async send(statement: unknown, [ids, fences]: string[]) {
        assert.equal(statement, completeJobs)
        sent.push([ids, fences])
        // The claim with fence 2 is the one that holds.
        return [{ result: fences === '{2}' ? null : '{"done": [6], "locked": []}' }]
      },
    },
    database: {
      pool: { idleCount: 1 },
      async send(_: unknown, [, fence]: string[]) {
        return [{ state: fence === '2' ? 'done' : 'lost' }]
      },
    },
  }
  const completer = new Completer(engine as unknown as Engine)
  const complete = (attempt: Attempt, result: string | null) =>
    new Promise((resolve) => completer.record(attempt, undefined, result, resolve))
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
