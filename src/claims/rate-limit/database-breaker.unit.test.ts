import { describe, expect, it } from 'vitest'
import { deferred } from '../../../test/deferred.js'
import {
  BusyError,
  CommitOutcomeUnknownError,
  ConnectionLostError,
  ConstraintViolationError,
  DatabaseError,
  InvalidInputError,
  StatementTimeoutError,
} from '../../errors.js'
import { DatabaseBreaker, DatabaseUnavailable } from './database-breaker.js'

const throwing = (error: unknown) => () => Promise.reject(error)
const lost = new ConnectionLostError('on purpose')

describe('a store', () => {
  it.each([
    ['a connection that was lost', lost],
    ['an answer that was lost', new CommitOutcomeUnknownError('a statement')],
    ['no connection in time', new BusyError('a connection of the pool', 5_000, 100)],
    ['silence', new StatementTimeoutError('nothing came')],
  ])('is down after %s, and left alone', async (_, cause) => {
    const watch = new DatabaseBreaker(1_000)
    await expect(watch.run(throwing(cause))).rejects.toMatchObject({ cause })
    expect(() => watch.assertAvailable()).toThrow(DatabaseUnavailable)
    const asked: string[] = []
    const ask = watch.run(async () => asked.push('again'))
    await expect(ask).rejects.toMatchObject({ cause })
    expect(asked).toEqual([])
  })

  it.each([
    ['a wrong argument', new InvalidInputError('cost', 'must be positive')],
    ['a constraint', new ConstraintViolationError({ sqlState: '23514', kind: 'check' })],
    ['a lock that another holds', new StatementTimeoutError('lock_timeout', '55P03')],
    ['a function that is missing', new DatabaseError('no such function', '42883')],
    ['a mistake', new TypeError('on purpose')],
  ])('is not down after %s', async (_, error) => {
    const watch = new DatabaseBreaker(1_000)
    await expect(watch.run(throwing(error))).rejects.toBe(error)
    watch.assertAvailable()
  })

  it('is down when it does not answer in time', async () => {
    const watch = new DatabaseBreaker(5)
    const never = deferred()
    await expect(watch.run(() => never.promise)).rejects.toBeInstanceOf(DatabaseUnavailable)
  })

  it('is tried again by one after a while, and by all once it answers', async () => {
    const watch = new DatabaseBreaker(1_000, 20)
    await watch.run(throwing(lost)).catch(() => {})
    await expect.poll(() => isUp(watch), { interval: 2 }).toBe(true)
    const answer = deferred<string>()
    const trying = watch.run(() => answer.promise)
    expect(isUp(watch)).toBe(false)
    answer.resolve('back')
    expect(await trying).toBe('back')
    expect(isUp(watch)).toBe(true)
  })
})

function isUp(watch: DatabaseBreaker): boolean {
  try {
    watch.assertAvailable()
    return true
  } catch {
    return false
  }
}
