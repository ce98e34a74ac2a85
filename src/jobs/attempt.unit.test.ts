import { describe, expect, it } from 'vitest'
import { FenceLostError, JobCanceledError } from '../errors.js'
import { Attempt, type AttemptState } from './attempt.js'
import type { ClaimedJob } from './claimed-job.js'
import { resolveDefinition } from './job-definition.js'

const job = { id: 7, fence: 3 } as ClaimedJob
const start = () => new Attempt(job, resolveDefinition('pay', {}), 'w', 0)

/** How to get an attempt into each state. */
const make: Readonly<Record<AttemptState, (attempt: Attempt) => unknown>> = {
  waiting: () => {},
  running: (attempt) => attempt.start(),
  committing: (attempt) => [attempt.start(), attempt.startCommit()],
  recording: (attempt) => [attempt.start(), attempt.startRecording()],
  lost: (attempt) => [attempt.start(), attempt.lose('stolen')],
  ended: (attempt) => [attempt.start(), attempt.startRecording(), attempt.end()],
  refused: (attempt) => [attempt.start(), attempt.startRecording(), attempt.refuse()],
}

const steps: Readonly<Record<string, (attempt: Attempt) => unknown>> = {
  start: (attempt) => attempt.start(),
  startCommit: (attempt) => attempt.startCommit(),
  startRecording: (attempt) => attempt.startRecording(),
  end: (attempt) => attempt.end(),
  refuse: (attempt) => attempt.refuse(),
}

describe('an attempt', () => {
  it.each<[AttemptState, string[]]>([
    ['waiting', ['start', 'startRecording']],
    ['running', ['startCommit', 'startRecording']],
    ['committing', ['start', 'startRecording', 'end', 'refuse']],
    ['recording', ['startRecording', 'end', 'refuse']],
    ['lost', ['startRecording']],
    ['ended', []],
    ['refused', []],
  ])('that is %s can do only: %s', (state, allowed) => {
    const possible = Object.entries(steps).filter(([, step]) => {
      const attempt = start()
      make[state](attempt)
      expect(attempt.state).toBe(state)
      try {
        step(attempt)
        return true
      } catch (error) {
        expect(attempt.state).toBe(state)
        expect(error).toBeInstanceOf(
          state === 'lost' && step === steps.startCommit ? FenceLostError : RangeError,
        )
        return false
      }
    })
    expect(possible.map(([name]) => name)).toEqual(allowed)
  })

  it.each<[AttemptState, boolean]>([
    ['waiting', true],
    ['running', true],
    ['committing', false],
    ['recording', false],
    ['lost', false],
    ['ended', false],
    ['refused', false],
  ])('that is %s can be lost: %s', (state, canBeLost) => {
    const attempt = start()
    make[state](attempt)
    expect(attempt.lose('lost contact')).toBe(canBeLost)
    expect(attempt.state).toBe(canBeLost ? 'lost' : state)
  })

  it('keeps the first reason of its abort', () => {
    const attempt = start()
    let calls = 0
    attempt.onAbort = () => calls++
    const reason = new JobCanceledError('job 7', undefined)
    attempt.abort(reason)
    attempt.start()
    attempt.lose('stolen')
    expect([attempt.signal.reason, attempt.isCanceled, calls]).toEqual([reason, true, 1])
  })

  it('does not commit when it was aborted and its outcome is recorded', () => {
    const attempt = start()
    attempt.start()
    const reason = new Error('stop')
    attempt.abort(reason)
    attempt.startRecording()
    expect(() => attempt.startCommit()).toThrow(reason)
  })
})
