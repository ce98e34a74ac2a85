import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import * as errors from './errors.js'
import {
  BusyError,
  ConflictError,
  DibsError,
  errorRegistry,
  FenceLostError,
  InvalidInputError,
  LockHeldError,
  SnoozeError,
} from './errors.js'

const classes = Object.entries(errors).filter(
  ([name, value]) => typeof value === 'function' && name.endsWith('Error') && name !== 'DibsError',
)

describe('the registry', () => {
  it('holds every error class', () => {
    expect(errorRegistry.map(({ name }) => name).toSorted()).toEqual(classes.map(([name]) => name).toSorted())
  })

  it('gives each its own code, named after the class', () => {
    for (const { name, entry } of errorRegistry) {
      const expected = `DIBS_${name
        .replace(/Error$/, '')
        .replace(/(?<=[a-z])(?=[A-Z])/g, '_')
        .toUpperCase()}`
      expect(entry.code).toBe(expected)
      expect(entry.status).toBeGreaterThanOrEqual(400)
    }
  })

  it('is what docs/errors.md says', () => {
    const page = readFileSync(join(import.meta.dirname, '../docs/errors.md'), 'utf8')
    for (const { name, entry } of errorRegistry) {
      expect(page).toContain(`## ${name}`)
      expect(page).toContain(entry.means)
      expect(page).toContain(entry.remedy)
    }
  })
})

describe('an error', () => {
  it('carries name, code, status, ids and cause', () => {
    const cause = new Error('below')
    const error = new FenceLostError('lock "nightly"', 42, { cause })
    expect(error).toBeInstanceOf(DibsError)
    expect(error).toMatchObject({
      name: 'FenceLostError',
      code: 'DIBS_FENCE_LOST',
      status: 409,
      retryable: false,
      subject: 'lock "nightly"',
      fence: 42,
    })
    expect(error.cause).toBe(cause)
    expect(`${error}`).toMatch(/^FenceLostError: The claim on lock "nightly" with fence 42 is lost/)
    expect('cause' in new FenceLostError('x', 1)).toBe(false)
    expect(new FenceLostError('quota "x", lock "y"', 0).message).toMatch(
      /^The claim on quota "x", lock "y" is lost:/,
    )
  })

  it('of a wait says how long that was, or that there was none', () => {
    const subject = 'a turn at quota "x" of "y"'
    expect(new BusyError(subject, 12.3, 100).message).toBe(
      `Waited 12 ms for ${subject}. Try again in 100 ms.`,
    )
    expect(new BusyError(subject, 0, 100).message).toBe(`Did not wait for ${subject}. Try again in 100 ms.`)
  })

  it('of a lock says who holds it and until when', () => {
    const leaseUntil = new Date('2026-11-18T16:20:00Z')
    expect(new BusyError('lock "nightly-report"', 500, 250, { holder: 'pod-7', leaseUntil })).toMatchObject({
      message:
        'Waited 500 ms for lock "nightly-report". It is held by "pod-7" (lease until 2026-11-18T16:20:00.000Z, unless renewed). Try again in 250 ms.',
      holder: 'pod-7',
      leaseUntil,
    })
    expect(new BusyError('lock "x"', 0, 250, { holder: 'pod-7' }).message).toBe(
      'Did not wait for lock "x". It is held by "pod-7". Try again in 250 ms.',
    )
    expect(new LockHeldError('x', 250, { holder: 'pod-7', leaseUntil }).message).toBe(
      'Lock "x" is held by "pod-7" (lease until 2026-11-18T16:20:00.000Z, unless renewed). Try again in 250 ms.',
    )
    expect(new LockHeldError('x', 250).message).toBe(
      'Lock "x" is held by another caller. Try again in 250 ms.',
    )
  })

  it('becomes JSON with its ids, without stack or cause', () => {
    const error = new ConflictError({
      subject: 'order 7',
      expected: 1,
      current: 2,
      cause: new Error('below'),
    })
    expect(JSON.parse(JSON.stringify(error))).toEqual({
      name: 'ConflictError',
      message: 'Conflict on order 7: another writer was first. Expected version 1, found 2.',
      code: 'DIBS_CONFLICT',
      retryable: true,
      status: 409,
      subject: 'order 7',
      expected: 1,
      current: 2,
    })
  })

  it('of a class made by the user keeps the code of its parent', () => {
    class SoldOutError extends errors.BusinessRuleError {}
    const error = new SoldOutError('nothing left', 'sold-out')
    expect(error).toMatchObject({ name: 'SoldOutError', code: 'DIBS_BUSINESS_RULE', rule: 'sold-out' })
  })

  it.each([-1, Number.NaN, Number.POSITIVE_INFINITY])('cannot snooze for %s ms', (delayMs) => {
    expect(() => new SnoozeError(delayMs)).toThrow(InvalidInputError)
  })
})
