import { describe, expect, it } from 'vitest'
import { holdersOf } from '../../../test/claims/holders.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { until } from '../../../test/database.js'
import { deferred } from '../../../test/deferred.js'
import { Dibs } from '../../dibs.js'
import {
  AmbiguousOutcomeError,
  BusinessRuleError,
  BusyError,
  ClosedError,
  FenceLostError,
  FingerprintMismatchError,
  InProgressError,
  InvalidInputError,
  InvalidOutcomeError,
  PermanentError,
  TransientError,
} from '../../errors.js'
import { countTraffic } from '../../testing/count-traffic.js'
import type { Claim } from '../claim.js'
import type { LeasedSpec } from './once-spec.js'

const fixture = openClaims()
const at = { scope: 'payments', key: 'k', mode: 'leased' } as const
const address = { scope: at.scope, key: at.key }
const HOUR_MS = 3_600_000
const { startHolder, abandon } = holdersOf(fixture, at)

describe('once, leased', () => {
  it('runs once, replays, and needs two round trips and one', async () => {
    await fixture.dibs.once({ ...at, key: 'warm' }, async () => 1)
    const first = await countTraffic(fixture.pool, () =>
      fixture.dibs.onceDetailed(at, async (claim) => ({ fence: claim.fence })),
    )
    expect(first).toMatchObject({ roundTrips: 2, commits: 2, value: { replayed: false, attempt: 1 } })
    const second = await countTraffic(fixture.pool, () =>
      fixture.dibs.onceDetailed(at, async () => ({ fence: 0 })),
    )
    expect(second).toMatchObject({ roundTrips: 1, value: { ...first.value, replayed: true } })
  })

  it('commits the claim before the handler runs, and gives it what it needs', async () => {
    const seen = await fixture.dibs.once(at, async (claim) => {
      expect(claim.signal.aborted).toBe(false)
      expect(claim.idempotencyKey).toBe(claim.id)
      const record = await fixture.dibs.claims.get(address)
      expect(record).toMatchObject({
        id: claim.id,
        fence: claim.fence,
        status: 'pending',
        held: 'held',
        attempt: 1,
      })
      return claim.attempt
    })
    expect(seen).toBe(1)
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ status: 'active', outcome: 1 })
  })

  it('turns a second caller away at once, with the id and the time to come back', async () => {
    const holder = startHolder({ leaseMs: 60_000 })
    const { id } = await holder.began
    const error = await fixture.dibs.once(at, async () => 2).catch((reason) => reason)
    expect(error).toBeInstanceOf(InProgressError)
    expect(error).toMatchObject({ id, status: 409 })
    expect(error.retryAfterMs).toBe(1_000)
    holder.finish(() => 1)
    expect(await holder.ended).toMatchObject({ value: 1 })
  })

  it('lets it wait if that is asked for, then replays', async () => {
    const holder = startHolder()
    await holder.began
    const second = fixture.dibs.onceDetailed({ ...at, waitMs: 10_000 }, async () => 2)
    await expect(fixture.dibs.once({ ...at, waitMs: 40 }, async () => 2)).rejects.toThrow(BusyError)
    holder.finish(() => 1)
    expect(await second).toMatchObject({ value: 1, replayed: true })
  })

  it('compares fingerprints also while another works', async () => {
    const holder = startHolder({ fingerprint: { amount: 1 } })
    await holder.began
    const other = fixture.dibs.once({ ...at, fingerprint: { amount: 2 } }, async () => 2)
    await expect(other).rejects.toThrow(FingerprintMismatchError)
    holder.finish(() => 1)
    await holder.ended
  })

  it('stores and replays a terminal error', async () => {
    const sold = new BusinessRuleError('sold out', 'sold-out')
    await expect(fixture.dibs.once(at, () => Promise.reject(sold))).rejects.toBe(sold)
    await expect(fixture.dibs.once(at, async () => 2)).rejects.toThrow(BusinessRuleError)
    await expect(fixture.dibs.once(at, async () => 2)).rejects.toMatchObject({ rule: 'sold-out' })
  })

  it('releases after any other error, and the next caller goes on under the same id', async () => {
    const ids: string[] = []
    const fences: number[] = []
    for (const attempt of [1, 2, 3]) {
      const failed = fixture.dibs.once(at, async (claim) => {
        ids.push(claim.idempotencyKey)
        fences.push(claim.fence)
        expect(claim.attempt).toBe(attempt)
        throw new TransientError('the bank is down')
      })
      await expect(failed).rejects.toThrow('the bank is down')
      expect(await fixture.dibs.claims.get(address)).toMatchObject({ held: 'released', lost: 0 })
    }
    expect(new Set(ids).size).toBe(1)
    expect(fences).toEqual(fences.toSorted((a, b) => a - b))
    expect(new Set(fences).size).toBe(3)
    expect(await fixture.dibs.onceDetailed(at, async () => 1)).toMatchObject({ attempt: 4, replayed: false })
  })

  it('never releases after the work was done: an outcome that is no JSON is a failure for all', async () => {
    await expect(fixture.dibs.once(at, async () => 1n as never)).rejects.toThrow(InvalidOutcomeError)
    await expect(fixture.dibs.once(at, async () => 2)).rejects.toThrow('`outcome` is a bigint')
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ status: 'failed' })
  })

  it('keeps the outcome from the end of the work on, then the key is new, with another id', async () => {
    const { id } = await fixture.dibs.onceDetailed({ ...at, keepMs: 60_000 }, async () => {
      await fixture.schema.clock.advance(50_000)
      return 1
    })
    await fixture.schema.clock.advance(50_000)
    expect(await fixture.dibs.once(at, async () => 2)).toBe(1)
    await fixture.schema.clock.advance(11_000)
    const anew = await fixture.dibs.onceDetailed(at, async () => 2)
    expect(anew).toMatchObject({ value: 2, attempt: 1 })
    expect(anew.id).not.toBe(id)
  })
})

describe('after a crash', () => {
  it('the next caller takes over, once the lease has run out, under the same id', async () => {
    const holder = startHolder({ leaseMs: 60_000 })
    const dead = await holder.began
    await fixture.schema.clock.advance(50_000)
    await expect(fixture.dibs.once(at, async () => 2)).rejects.toThrow(InProgressError)
    await fixture.schema.clock.advance(10_000)
    let taken: Claim | undefined
    const events = await fixture.eventsOf(() =>
      fixture.dibs.once(at, async (claim) => {
        taken = claim
        return 2
      }),
    )
    expect(taken).toMatchObject({ id: dead.id, idempotencyKey: dead.idempotencyKey, attempt: 2 })
    expect(taken?.fence).toBeGreaterThan(dead.fence)
    expect(events).toMatchObject([['dibs:once.taken-over', { attempt: 2, lost: 1 }]])
    holder.finish(() => 1)
    await holder.ended
  })

  it('a holder that wakes up late writes nothing, and gets the outcome of the other', async () => {
    const holder = startHolder()
    await holder.began
    await fixture.schema.clock.advance(HOUR_MS)
    await fixture.dibs.once(at, async () => 'second')
    const events = await fixture.eventsOf(async () => {
      holder.finish(() => 'first')
      expect(await holder.ended).toMatchObject({ value: 'second', replayed: true, attempt: 2 })
    })
    expect(events).toMatchObject([['dibs:once.lost', { how: 'outcome' }]])
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ outcome: 'second', attempt: 2 })
  })

  it('a holder that wakes up while another works is FenceLostError', async () => {
    const late = startHolder()
    await late.began
    await fixture.schema.clock.advance(HOUR_MS)
    const other = startHolder()
    await other.began
    late.finish(() => 'late')
    await expect(late.ended).rejects.toThrow(FenceLostError)
    other.finish(() => 'other')
    expect(await other.ended).toMatchObject({ value: 'other' })
  })

  it('a late error neither fails nor releases what another holds', async () => {
    const releasing = startHolder()
    await releasing.began
    await fixture.schema.clock.advance(HOUR_MS)
    const failing = startHolder()
    await failing.began
    await fixture.schema.clock.advance(HOUR_MS)
    const other = startHolder()
    await other.began
    releasing.finish(() => Promise.reject(new TransientError('late')))
    failing.finish(() => Promise.reject(new PermanentError('late')))
    await expect(releasing.ended).rejects.toThrow('late')
    await expect(failing.ended).rejects.toThrow('late')
    expect(await fixture.dibs.claims.get(address)).toMatchObject({
      status: 'pending',
      held: 'held',
      attempt: 3,
    })
    other.finish(() => 1)
    await other.ended
  })

  it('finishes what nobody has taken over, however late', async () => {
    const holder = startHolder()
    await holder.began
    await fixture.schema.clock.advance(10 * HOUR_MS)
    holder.finish(() => 'late')
    expect(await holder.ended).toMatchObject({ value: 'late', replayed: false })
  })

  it('gives up after as many attempts as were allowed, visibly', async () => {
    await abandon()
    await abandon()
    const events = await fixture.eventsOf(async () => {
      const failed = fixture.dibs.once({ ...at, maxAttempts: 2 }, async () => 3)
      await expect(failed).rejects.toThrow(PermanentError)
      await expect(failed).rejects.toThrow('Given up after 2 attempts without a recorded outcome')
    })
    expect(events).toMatchObject([['dibs:once.gave-up', { attempt: 2 }]])
    const { items: claims } = await fixture.dibs.claims.list({ status: 'failed' })
    expect(claims).toMatchObject([{ key: 'k', attempt: 2, lost: 2 }])
    await expect(fixture.dibs.once(at, async () => 4)).rejects.toThrow('Given up')
  })

  it('counts only attempts without a recorded outcome', async () => {
    for (let n = 0; n < 5; n++)
      await fixture.dibs
        .once({ ...at, maxAttempts: 2 }, () => Promise.reject(new Error('told')))
        .catch(() => {})
    await abandon()
    expect(await fixture.dibs.once({ ...at, maxAttempts: 2 }, async ({ attempt }) => attempt)).toBe(7)
  })

  it('keeps a pending claim beyond the time for outcomes', async () => {
    await abandon({ keepMs: 1_000 })
    expect(await fixture.dibs.maintain({ once: true })).toMatchObject({ claimsForgotten: 0 })
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ held: 'abandoned' })
  })
})

describe('onAmbiguous', () => {
  it('hold runs nothing until somebody decides', async () => {
    const { id } = await abandon()
    const hold = () => fixture.dibs.once({ ...at, onAmbiguous: 'hold' }, async () => 2)
    await expect(hold()).rejects.toThrow(AmbiguousOutcomeError)
    await expect(hold()).rejects.toMatchObject({ id, attempt: 1, retryable: false })
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ held: 'abandoned', attempt: 1 })
    expect(await fixture.dibs.once({ ...at, onAmbiguous: 'retry' }, async () => 2)).toBe(2)
    expect(await hold()).toBe(2)
  })

  it('a function that finds the work done ends it with that outcome', async () => {
    const { idempotencyKey } = await abandon()
    const value = await fixture.dibs.once(
      { ...at, onAmbiguous: async (claim: Claim) => ({ outcome: `found ${claim.idempotencyKey}` }) },
      () => Promise.reject(new Error('must not run')),
    )
    expect(value).toBe(`found ${idempotencyKey}`)
    expect(await fixture.dibs.once(at, async () => 3)).toBe(`found ${idempotencyKey}`)
  })

  it('a function may let it run, hold it, or fail: then it is as ambiguous as before', async () => {
    await abandon()
    const ask = (onAmbiguous: LeasedSpec['onAmbiguous']) =>
      fixture.dibs.once({ ...at, onAmbiguous }, async ({ attempt }) => attempt)
    await expect(ask(() => 'hold')).rejects.toThrow(AmbiguousOutcomeError)
    await expect(ask(() => Promise.reject(new Error('cannot reach the bank')))).rejects.toThrow(
      'cannot reach',
    )
    await expect(ask(() => 'perhaps' as never)).rejects.toThrow(InvalidInputError)
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ held: 'abandoned' })
    await expect(ask('hold')).rejects.toThrow(AmbiguousOutcomeError)
    expect(await ask(() => 'retry')).toBe(5)
  })

  it('with hold, an error that does not say it may be repeated may have had its effect', async () => {
    const run = (error: Error) =>
      fixture.dibs.once({ ...at, onAmbiguous: 'hold' }, () => Promise.reject(error)).catch((reason) => reason)
    expect(await run(new TransientError('refused'))).toBeInstanceOf(TransientError)
    expect(await run(new Error('socket hang up'))).toMatchObject({ message: 'socket hang up' })
    expect(await run(new Error('again'))).toBeInstanceOf(AmbiguousOutcomeError)
  })
})

describe('a question that was not answered', () => {
  /** Repeats the call. The claim must stay ambiguous. */
  const ask = (onAmbiguous: LeasedSpec['onAmbiguous']) =>
    fixture.dibs.once({ ...at, onAmbiguous, maxAttempts: 3 }, async () => 'ran').catch((error) => error)

  it.each([
    [
      'an error that may pass',
      () => Promise.reject(new TransientError('the bank does not answer')),
      TransientError,
    ],
    ['another error', () => Promise.reject(new Error('the bank does not answer')), Error],
    ['hold', () => 'hold' as const, AmbiguousOutcomeError],
  ])('by %s stays, however often', async (_, onAmbiguous, expected) => {
    await abandon()
    for (let n = 0; n < 6; n++) expect(await ask(onAmbiguous)).toBeInstanceOf(expected)
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ held: 'abandoned', lost: 0 })
    expect(await ask(() => ({ outcome: 'found' }))).toBe('found')
  })

  it.each([new BusyError('a connection', 1, 1), new InProgressError('another key', 1)])(
    'with hold, an error of Dibs says nothing about the effect: %s',
    async (error) => {
      let paid = 0
      const pay = () =>
        fixture.dibs.once({ ...at, onAmbiguous: 'hold' }, async () => {
          paid++
          throw error
        })
      await expect(pay()).rejects.toBe(error)
      await expect(pay()).rejects.toThrow(AmbiguousOutcomeError)
      expect(paid).toBe(1)
    },
  )

  it('is answered by an operator', async () => {
    await abandon()
    const { claims } = fixture.dibs
    expect(await claims.resolve(address, { outcome: { id: 7 } })).toEqual({ ok: true })
    expect(await claims.resolve(address, 'retry')).toEqual({ ok: false }) // the claim has its outcome
    expect(await fixture.dibs.once({ ...at, onAmbiguous: 'hold' }, async () => 2)).toEqual({ id: 7 })
    const other = { ...address, key: 'other' }
    const { began } = startHolder({ key: 'other' })
    await began
    await expect(claims.resolve(other, 'retry')).rejects.toThrow(InProgressError)
    await fixture.schema.clock.advance(HOUR_MS)
    expect(await claims.resolve(other, 'retry')).toEqual({ ok: true })
    expect(
      await fixture.dibs.onceDetailed({ ...at, key: 'other', onAmbiguous: 'hold' }, async () => 2),
    ).toMatchObject({
      value: 2,
      attempt: 2,
    })
    expect(await claims.resolve({ ...address, key: 'none' }, 'retry')).toEqual({ ok: false })
    await expect(claims.resolve(address, 'maybe' as never)).rejects.toThrow(
      "`verdict` must be 'retry' or { outcome }",
    )
  })

  it('keeps a joined call from running beside it', async () => {
    await abandon()
    await expect(fixture.dibs.once(address, async () => 2)).rejects.toThrow(AmbiguousOutcomeError)
    await fixture.dibs.transaction(async (tx) => {
      const inside = fixture.dibs.once({ ...address, tx }, async () => 2)
      await expect(inside).rejects.toThrow(AmbiguousOutcomeError)
    })
  })
})

describe('whatever is thrown', () => {
  it.each([
    [
      'an error whose message is no text',
      Object.assign(new PermanentError('x'), { message: { a: 1 } }),
      undefined,
    ],
    ['what has no prototype', Object.create(null), () => true],
  ])('%s ends the lease', async (_, thrown, isTerminal) => {
    const run = fixture.dibs.once({ ...at, isTerminal }, () => Promise.reject(thrown))
    await expect(run).rejects.toBe(thrown)
    expect((await fixture.dibs.claims.get(address))?.held).not.toBe('held')
  })

  it('a rule that throws says nothing', async () => {
    const isTerminal = () => {
      throw new TypeError('bug')
    }
    await expect(
      fixture.dibs.once({ ...at, isTerminal }, () => Promise.reject(new Error('boom'))),
    ).rejects.toThrow('boom')
    expect(await fixture.dibs.claims.get(address)).toMatchObject({
      held: 'released',
      lastError: { name: 'Error', message: 'boom' },
    })
  })
})

describe('steps', () => {
  it('are not done again by whoever takes over', async () => {
    const dead = deferred()
    const done: string[] = []
    const work = async (claim: Claim, dies: boolean) => {
      const paid = await claim.step('pay', async ({ idempotencyKey }) => {
        done.push(`pay ${idempotencyKey}`)
        return { id: 'p-1', at: new Date(0) }
      })
      await claim.step('note', () => void done.push('note'))
      if (dies) await dead.promise
      await claim.step('mail', () => void done.push(`mail ${paid.id} ${paid.at}`))
      return paid
    }
    const died = fixture.dibs.once({ ...at, leaseMs: HOUR_MS }, (claim) => work(claim, true))
    await until(async () => (await fixture.dibs.claims.get(address))?.steps.length === 2, 'two steps')
    await fixture.schema.clock.advance(HOUR_MS)
    const { id, value } = await fixture.dibs.onceDetailed(at, (claim) => work(claim, false))
    expect(value).toEqual({ id: 'p-1', at: '1970-01-01T00:00:00.000Z' })
    expect(done).toEqual([`pay ${id}:pay`, 'note', 'mail p-1 1970-01-01T00:00:00.000Z'])
    expect((await fixture.dibs.claims.get(address))?.steps).toEqual(['mail', 'note', 'pay'])
    dead.resolve()
    await expect(died).rejects.toThrow(FenceLostError) // the holder wakes up, and its next step is rejected
  })

  it('of a lost claim are refused', async () => {
    const holder = startHolder()
    const claim = await holder.began
    await fixture.schema.clock.advance(HOUR_MS)
    await fixture.dibs.once(at, async () => 2)
    await expect(claim.step('late', () => 1)).rejects.toThrow(FenceLostError)
    expect(claim.signal.aborted).toBe(true)
    expect((await fixture.dibs.claims.get(address))?.steps).toEqual([])
    holder.finish(() => 1)
    await holder.ended
  })

  it('that return what is no JSON end the claim for good', async () => {
    const failed = fixture.dibs.once(at, (claim) => claim.step('pay', () => 1n as never))
    await expect(failed).rejects.toThrow(PermanentError)
    await expect(fixture.dibs.once(at, async () => 2)).rejects.toThrow(
      'A step is done, but its outcome cannot be kept: `step "pay"` is a bigint',
    )
    const much = fixture.dibs.once({ ...at, key: 'much' }, async (claim) => {
      await claim.step('a', () => 'x'.repeat(600_000))
      await claim.step('b', () => 'x'.repeat(600_000))
    })
    await expect(much).rejects.toThrow('`step "b"` must be at most 1048576 bytes with all steps before it')
  })

  it('have each a name of their own', async () => {
    const sent: string[] = []
    const twice = fixture.dibs.once(at, async (claim) => {
      for (const to of ['ann', 'bob']) await claim.step('mail', () => void sent.push(to))
    })
    await expect(twice).rejects.toThrow(
      '`name` "mail" is that of another step of this attempt; give each its own',
    )
    expect(sent).toEqual(['ann'])
    const long = fixture.dibs.once({ ...at, key: 'long' }, (claim) => claim.step('x'.repeat(201), () => 1))
    await expect(long).rejects.toThrow('`name` must be at most 200 bytes long')
  })

  it('need a name', async () => {
    await expect(fixture.dibs.once(at, (claim) => claim.step('', () => 1))).rejects.toThrow(InvalidInputError)
  })
})

describe('close', () => {
  it('waits for the handler and lets it store its outcome', async () => {
    const dibs = await Dibs.open({
      pool: fixture.pool,
      schema: fixture.schema.name,
      migrate: 'off',
      listen: false,
      prepared: false,
    })
    const began = deferred()
    const goOn = deferred()
    const ended = dibs.once(at, async (claim) => {
      began.resolve()
      await goOn.promise
      await claim.step('last', () => 1)
      return 1
    })
    await began.promise
    const closed = dibs.close()
    await expect(dibs.once(at, async () => 2)).rejects.toThrow(ClosedError)
    goOn.resolve()
    expect(await ended).toBe(1)
    await closed
    expect(await fixture.dibs.claims.get(address)).toMatchObject({ status: 'active' })
  })
})
