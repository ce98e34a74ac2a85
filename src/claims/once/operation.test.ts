import { describe, expect, it } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { until } from '../../../test/database.js'
import { deferred } from '../../../test/deferred.js'
import { Dibs } from '../../dibs.js'
import {
  FingerprintMismatchError,
  InProgressError,
  InvalidInputError,
  PermanentError,
  TransientError,
} from '../../errors.js'
import { onEvent } from '../../postgres/events.js'
import type { StandardSchema } from '../../postgres/standard-schema.js'
import { countTraffic } from '../../testing/count-traffic.js'
import type { Claim } from '../claim.js'
import type { OperationOptions } from './operation.js'

const fixture = openClaims()
const LEASE_MS = 3_600_000
type Charge = { amount: number }

/** Another process: an instance of its own, which is gone after `fn`. */
async function elsewhere<T>(fn: (dibs: Dibs) => Promise<T>): Promise<T> {
  const { pool, schema } = fixture
  await using dibs = await Dibs.open({
    pool,
    schema: schema.name,
    migrate: 'off',
    listen: false,
    prepared: false,
  })
  return await fn(dibs)
}

const define = <R = unknown>(
  dibs: Dibs,
  fn: (input: Charge, claim: Claim) => Promise<unknown>,
  options: OperationOptions<Charge, R> = {},
) => dibs.operation('charge', { leaseMs: LEASE_MS, ...options }, fn)

/** A process that has begun, and whose lease has run out. Call the function at the end of the test. */
async function dieInside(
  key: string,
  until?: (claim: Claim) => Promise<unknown>,
): Promise<() => Promise<void>> {
  const began = deferred()
  const over = deferred()
  const ended = elsewhere(async (dibs) => {
    const charge = define(dibs, async (_, claim) => {
      await until?.(claim)
      began.resolve()
      await over.promise
    })
    await charge.run({ amount: 7 }, { key }).catch(() => {})
  })
  await began.promise
  await fixture.schema.clock.advance(LEASE_MS)
  return async () => {
    over.resolve()
    await ended
  }
}

describe('an operation', () => {
  it('runs once for a key, with its input, and replays', async () => {
    await elsewhere(async (dibs) => {
      const seen: unknown[] = []
      const charge = define(dibs, async ({ amount }, claim) => {
        seen.push([amount, claim.attempt])
        return { id: claim.id, amount }
      })
      const first = await charge.runDetailed({ amount: 7 }, { key: 'a' })
      expect(await charge.run({ amount: 7 }, { key: 'a' })).toEqual(first.value)
      expect(seen).toEqual([[7, 1]])
      await expect(charge.run({ amount: 8 }, { key: 'a' })).rejects.toThrow(FingerprintMismatchError)
      expect(await dibs.claims.get({ operation: 'charge', key: 'a' })).toMatchObject({
        operation: 'charge',
        input: { amount: 7 },
        outcome: first.value,
        status: 'active',
      })
    })
  })

  it('can be defined without options, and tried without an error while another caller works on the key', async () => {
    await elsewhere(async (dibs) => {
      const seen = deferred()
      const goOn = deferred()
      const charge = dibs.operation('charge', async ({ amount }: Charge, claim) => {
        seen.resolve()
        await goOn.promise
        if (amount === 0) throw new TransientError('later')
        return claim.attempt
      })
      const running = charge.run({ amount: 7 }, { key: 'a' })
      await seen.promise
      const refused = await charge.tryRun({ amount: 7 }, { key: 'a' })
      expect(refused).toEqual({
        ...{ ok: false, id: expect.any(String), holder: expect.any(String), leaseUntil: expect.any(Date) },
        retryAfterMs: expect.any(Number),
      })
      expect(await charge.tryRun({ amount: 7 }, { key: 'a', waitMs: 10 })).toMatchObject({ ok: false })
      goOn.resolve()
      expect(await running).toBe(1)
      expect(await charge.tryRun({ amount: 7 }, { key: 'a' })).toMatchObject({
        ...{ ok: true, value: 1, replayed: true, attempt: 1 },
      })
      await expect(charge.tryRun({ amount: 0 }, { key: 'b' })).rejects.toThrow('later')
      await expect(charge.tryRun({ amount: 8 }, { key: 'a' })).rejects.toThrow(FingerprintMismatchError)
    })
  })

  it('has a scope that no caller of once can name', async () => {
    await elsewhere(async (dibs) => {
      await define(dibs, async () => 'operation').run({ amount: 7 }, { key: 'a' })
      expect(await dibs.once({ scope: 'charge', key: 'a' }, async () => 'once')).toBe('once')
      await expect(dibs.once({ scope: ':charge', key: 'a' }, async () => 'once')).rejects.toThrow(
        InvalidInputError,
      )
    })
  })

  it('is finished though another part of maintenance fails, which is told', async () => {
    const end = await dieInside('a')
    const { name } = fixture.schema
    const forget = `${name}.quota_delete_expired(integer)`
    const { rows } = await fixture.pool.query(`select pg_get_functiondef('${forget}'::regprocedure) as text`)
    await fixture.pool.query(
      `create or replace function ${name}.quota_delete_expired(p_limit integer, out count integer, out is_busy boolean) language sql as 'select 1 / 0, false'`,
    )
    try {
      await elsewhere(async (dibs) => {
        define(dibs, async () => 'done')
        await expect(dibs.maintain({ once: true })).rejects.toMatchObject({ sqlState: '22012' })
      })
      expect(await fixture.dibs.claims.get({ operation: 'charge', key: 'a' })).toMatchObject({
        outcome: 'done',
      })
    } finally {
      await fixture.pool.query(rows[0].text)
    }
    await end()
  })

  it('is finished by any process that has defined it', async () => {
    const end = await dieInside('a')
    const seen: unknown[] = []
    await elsewhere(async (dibs) => {
      expect(await dibs.maintain({ once: true })).toMatchObject({ operationsFinished: 0 }) // not defined here
      define(dibs, async (input, claim) => {
        seen.push(input, claim.attempt)
        return 'done'
      })
      expect(await dibs.maintain({ once: true })).toMatchObject({
        operationsFinished: 1,
        operationsFailed: 0,
      })
      expect(await dibs.maintain({ once: true })).toMatchObject({ operationsFinished: 0 })
    })
    expect(seen).toEqual([{ amount: 7 }, 2])
    expect(await fixture.dibs.claims.get({ operation: 'charge', key: 'a' })).toMatchObject({
      outcome: 'done',
    })
    await end()
  })

  it('that is held, released or done is left alone', async () => {
    await elsewhere(async (dibs) => {
      let ran = 0
      const goOn = deferred()
      const charge = define(dibs, async ({ amount }) => {
        ran++
        if (amount === 1) await goOn.promise
        if (amount === 2) throw new TransientError('told to the caller')
      })
      const held = charge.run({ amount: 1 }, { key: 'held' })
      await charge.run({ amount: 2 }, { key: 'released' }).catch(() => {})
      await charge.run({ amount: 3 }, { key: 'done' })
      await until(() => ran === 3, 'all three')
      expect(await dibs.maintain({ once: true })).toMatchObject({
        operationsFinished: 0,
        operationsFailed: 0,
      })
      await fixture.schema.clock.advance(LEASE_MS - 60_000)
      expect(await dibs.maintain({ once: true })).toMatchObject({
        operationsFinished: 0,
        operationsFailed: 0,
      })
      expect(ran).toBe(3)
      goOn.resolve()
      await held
    })
  })

  it('goes on behind the last step', async () => {
    const done: string[] = []
    const steps = async (claim: Claim): Promise<string> => {
      const id = await claim.step('pay', () => {
        done.push('pay')
        return 'p-1'
      })
      return `paid ${id}`
    }
    const end = await dieInside('a', steps)
    await elsewhere(async (dibs) => {
      define(dibs, (_, claim) => steps(claim))
      await dibs.maintain({ once: true })
    })
    expect(done).toEqual(['pay'])
    expect(await fixture.dibs.claims.get({ operation: 'charge', key: 'a' })).toMatchObject({
      outcome: 'paid p-1',
    })
    await end()
  })

  it('that fails again rests, and is given up in the end', async () => {
    const end = await dieInside('a')
    const events: unknown[] = []
    const stop = onEvent('dibs:operation.failed', ({ operation, attempt, isFinal }) => {
      events.push({ operation, attempt, isFinal })
    })
    await elsewhere(async (dibs) => {
      const charge = define(dibs, () => Promise.reject(new TransientError('still down')), { maxAttempts: 3 })
      expect(await dibs.maintain({ once: true })).toMatchObject({ operationsFailed: 1 })
      expect(await dibs.maintain({ once: true })).toMatchObject({ operationsFailed: 0 }) // the claim rests until its next attempt
      const refused = await charge.run({ amount: 7 }, { key: 'a' }).catch((error) => error)
      expect(refused).toBeInstanceOf(InProgressError)
      expect(refused).not.toHaveProperty('holder') // nobody works on it while it rests
      await fixture.schema.clock.advance(600_000)
      expect(await dibs.maintain({ once: true })).toMatchObject({ operationsFailed: 1 })
      await fixture.schema.clock.advance(600_000)
      expect(await dibs.maintain({ once: true })).toMatchObject({ operationsFailed: 0, operationsGivenUp: 1 })
      await expect(charge.run({ amount: 7 }, { key: 'a' })).rejects.toThrow('Given up after 3 attempts')
    })
    stop()
    expect(events).toEqual([
      { operation: 'charge', attempt: 2, isFinal: false },
      { operation: 'charge', attempt: 3, isFinal: false },
    ])
    await end()
  })

  it('that fails for good after a takeover is finished', async () => {
    const end = await dieInside('a')
    await elsewhere(async (dibs) => {
      const charge = define(dibs, () => Promise.reject(new PermanentError('no such account')))
      expect(await dibs.maintain({ once: true })).toMatchObject({
        operationsFinished: 1,
        operationsFailed: 0,
      })
      await expect(charge.run({ amount: 7 }, { key: 'a' })).rejects.toThrow('no such account')
    })
    await end()
  })

  it('that fails after a question rests too, and says why', async () => {
    const end = await dieInside('a')
    await elsewhere(async (dibs) => {
      define(dibs, () => Promise.reject(new Error('bank down')), { onAmbiguous: () => 'retry' })
      expect(await dibs.maintain({ once: true })).toMatchObject({ operationsFailed: 1 })
      expect(await dibs.maintain({ once: true })).toMatchObject({ operationsFailed: 0 })
      const address = { operation: 'charge', key: 'a' }
      expect(await dibs.claims.get(address)).toMatchObject({
        held: 'resting',
        lastError: { message: 'bank down' },
      })
    })
    await end()
  })

  it('whose rule for errors fails does not fail with it', async () => {
    const end = await dieInside('a')
    await elsewhere(async (dibs) => {
      const isTerminal = () => {
        throw new TypeError('bug')
      }
      define(dibs, () => Promise.reject(new Error('bank down')), { isTerminal })
      expect(await dibs.maintain({ once: true })).toMatchObject({ operationsFailed: 1 })
    })
    await end()
  })

  it('that hangs does not hold up another', async () => {
    const ends = []
    for (const key of ['a', 'b', 'c', 'd', 'e', 'f']) ends.push(await dieInside(key))
    await fixture.pool.query(
      `update ${fixture.schema.name}.claim set scope = ':other', open_operation = 'other' where key = 'f'`,
    )
    await elsewhere(async (dibs) => {
      const hung = deferred()
      let hanging = 0
      define(dibs, async () => {
        hanging++
        await hung.promise
      })
      const done = deferred()
      dibs.operation('other', {}, async () => done.resolve())
      const loop = dibs.maintain({ everyMs: 100 })
      await done.promise
      expect(hanging).toBe(5)
      hung.resolve()
      await loop.stop()
    })
    for (const end of ends) await end()
  })

  it('that must not be repeated unasked is left for someone to decide', async () => {
    const end = await dieInside('a')
    await elsewhere(async (dibs) => {
      define(dibs, async () => 1, { onAmbiguous: 'hold' })
      expect(await dibs.maintain({ once: true })).toMatchObject({
        operationsFinished: 0,
        operationsFailed: 0,
      })
    })
    expect((await fixture.dibs.claims.list({ held: 'abandoned' })).items).toMatchObject([
      { operation: 'charge', key: 'a' },
    ])
    await elsewhere(async (dibs) => {
      define(dibs, () => Promise.reject(new Error('must not run')), {
        onAmbiguous: () => ({ outcome: 'found' }),
      })
      expect(await dibs.maintain({ once: true })).toMatchObject({ operationsFinished: 1 })
    })
    expect(await fixture.dibs.claims.get({ operation: 'charge', key: 'a' })).toMatchObject({
      outcome: 'found',
    })
    await end()
  })

  it('is taken over once by two processes that maintain at the same time', async () => {
    const ends = [await dieInside('a'), await dieInside('b'), await dieInside('c')]
    let ran = 0
    const reports = await Promise.all(
      [1, 2, 3].map(() =>
        elsewhere(async (dibs) => {
          define(dibs, async () => ++ran)
          return dibs.maintain({ once: true })
        }),
      ),
    )
    expect(ran).toBe(3)
    expect(reports.reduce((sum, { operationsFinished }) => sum + operationsFinished, 0)).toBe(3)
    for (const end of ends) await end()
  })

  it('is kept going by a loop, until it is stopped', async () => {
    const end = await dieInside('a')
    await elsewhere(async (dibs) => {
      define(dibs, async () => 'in the background')
      const loop = dibs.maintain({ everyMs: 100 })
      await until(
        async () => (await dibs.claims.get({ operation: 'charge', key: 'a' }))?.status === 'active',
        'the operation to be finished',
      )
      await loop.stop()
    })
    await end()
  })

  it('parses its input before each attempt and its result after', async () => {
    const amount: StandardSchema<unknown, Charge> = {
      '~standard': {
        version: 1,
        vendor: 'test',
        validate: (value) => {
          const given = Number((value as Charge).amount)
          return given > 0
            ? { value: { amount: given } }
            : { issues: [{ message: 'must be above 0', path: ['amount'] }] }
        },
      },
    }
    const receipt: StandardSchema<unknown, { receipt: string }> = {
      '~standard': {
        version: 1,
        vendor: 'test',
        validate: (value) => ({ value: { receipt: String(value) } }),
      },
    }
    await elsewhere(async (dibs) => {
      const charge = dibs.operation(
        'charge',
        { input: amount, result: receipt },
        async (input) => input.amount,
      )
      const { value, roundTrips } = await countTraffic(fixture.pool, () =>
        charge.run({ amount: -1 }, { key: 'a' }).catch((error) => error),
      )
      expect(value).toBeInstanceOf(InvalidInputError)
      expect(value.message).toBe('`input` does not fit its schema: amount: must be above 0.')
      expect(value.status).toBe(400)
      expect(roundTrips).toBe(0)
      const answer = await charge.run({ amount: '7' as never }, { key: 'a' })
      expect(answer.receipt satisfies string).toBe('7')
    })
  })

  it('refuses bad definitions and calls before anything is sent', async () => {
    await elsewhere(async (dibs) => {
      const charge = define(dibs, async () => 1)
      expect(() => define(dibs, async () => 1)).toThrow('`name` is the name of another operation: "charge"')
      expect(() => dibs.operation('', {}, async () => 1)).toThrow(InvalidInputError)
      expect(() => dibs.operation('a', { leaseMs: -1 }, async () => 1)).toThrow('`leaseMs` must be')
      expect(() => dibs.operation('a', { retries: 1 } as never, async () => 1)).toThrow(
        'Unknown option "retries"',
      )
      expect(() => dibs.operation('a', {}, 7 as never)).toThrow('`fn` must be a function')
      expect(() => dibs.operation('a', { input: {} as never }, async () => 1)).toThrow(
        '`input` must be a Standard Schema',
      )
      const bad = async (input: unknown, options: unknown) =>
        countTraffic(fixture.pool, () => charge.run(input as never, options as never).catch((error) => error))
      for (const [input, options] of [
        [{ amount: 1 }, undefined],
        [{ amount: 1 }, { key: '' }],
        [{ amount: 1n }, { key: 'a' }],
        [undefined, { key: 'a' }],
        [{ amount: 1 }, { key: 'a', tx: 1 }],
      ]) {
        const { value, roundTrips } = await bad(input, options)
        expect(value).toBeInstanceOf(InvalidInputError)
        expect(roundTrips).toBe(0)
      }
    })
  })
})
