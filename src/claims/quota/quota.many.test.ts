import { describe, expect, it } from 'vitest'
import { openQuotas } from '../../../test/claims/open-quotas.js'
import { BusyError, DatabaseError, QuotaExceededError } from '../../errors.js'
import { countTraffic } from '../../testing/index.js'

const fixture = openQuotas()

const subjects = Array.from({ length: 40 }, (_, n) => `subject-${n}`)

describe('takes of many subjects at once', () => {
  it('share a few statements, and each gets exactly its limit', async () => {
    const quota = fixture.dibs.quota('points', { limit: 3, waitMs: 10_000 })
    const { value, commits } = await countTraffic(fixture.pool, () =>
      Promise.allSettled(
        Array.from({ length: 5 }, (_, n) =>
          subjects.map((subject) => quota.take(subject, 1, n % 2 ? { id: `${subject} ${n}` } : {})),
        ).flat(),
      ),
    )
    // With one statement per subject: one for the first take of each, and one for the four that came meanwhile.
    expect(commits).toBeLessThan(2 * subjects.length)
    const refused = value.filter(({ status }) => status === 'rejected')
    expect(value.length - refused.length).toBe(3 * subjects.length)
    for (const one of refused)
      expect((one as PromiseRejectedResult).reason).toBeInstanceOf(QuotaExceededError)
    for (const subject of subjects) expect((await quota.peek(subject)).used).toBe(3)
    await fixture.expectClean(quota)
  })

  it('are answered each for itself: new and known, granted and refused', async () => {
    const quota = fixture.dibs.quota('points', { limit: 10, per: 'day', waitMs: 10_000 })
    await quota.take('known', 4, { id: 'k' })
    await quota.take('full', 10)
    const answers = await Promise.all([
      ...subjects.map((subject) => quota.tryTake(subject, 2)),
      quota.tryTake('known', 4, { id: 'k' }),
      quota.tryTake('full', 1),
      quota.tryTake('full', 10, { limit: 20 }),
    ])
    const [known, full, raised] = answers.splice(-3)
    expect(answers.every(({ ok: granted, used }) => granted && used === 2)).toBe(true)
    expect(known).toMatchObject({ ok: true, replayed: true, used: 4 })
    expect(full).toMatchObject({ ok: false, requested: 1, retryAfterMs: 12 * 3_600_000 })
    expect(raised).toMatchObject({ ok: true, used: 20 })
    await fixture.expectClean(quota)
  })

  it('do not wait for one that another holds, which waits for itself', async () => {
    const quota = fixture.dibs.quota('points', { limit: 10, waitMs: 5_000 })
    await quota.take('held', 1)
    const other = await fixture.pool.connect()
    try {
      await other.query('begin')
      await quota.take('held', 1, { tx: other })
      const order: string[] = []
      const takes = ['held', ...subjects, 'held'].map(async (subject) => {
        await quota.take(subject)
        order.push(subject)
      })
      await expect.poll(() => order.length).toBe(subjects.length)
      expect(order).not.toContain('held')
      await other.query('commit')
      await Promise.all(takes)
    } finally {
      other.release()
    }
    expect((await quota.peek('held')).used).toBe(4)
  })

  it('are busy alone, if that other does not let go', async () => {
    const quota = fixture.dibs.quota('points', { limit: 10, waitMs: 60 })
    await quota.take('held', 1)
    const other = await fixture.pool.connect()
    try {
      await other.query('begin')
      await quota.take('held', 1, { tx: other })
      // Enough for all lanes, so that the one that is held goes with others.
      const patient = fixture.dibs.quota('points', { limit: 10, waitMs: 5_000 })
      const takes = [...subjects, 'held'].map((subject) => patient.take(subject))
      const held = takes.pop()?.catch((error) => error)
      expect((await Promise.allSettled(takes)).every(({ status }) => status === 'fulfilled')).toBe(true)
      await expect(quota.take('held')).rejects.toBeInstanceOf(BusyError)
      await other.query('rollback')
      expect(await held).toMatchObject({ used: 2 })
    } finally {
      await other.query('rollback')
      other.release()
    }
  })

  it('fail alone, if one of them does', async () => {
    const quota = fixture.dibs.quota('points', { limit: 10, waitMs: 10_000 })
    const { name } = fixture.schema
    await fixture.pool.query(`
      create function ${name}.refuse() returns trigger language plpgsql as $$
      begin if new.subject = 'bad' then raise exception 'refused by a trigger'; end if; return new; end $$;
      create trigger refuse before insert or update on ${name}.quota for each row execute function ${name}.refuse()`)
    try {
      const takes = await Promise.allSettled([...subjects, 'bad'].map((subject) => quota.take(subject)))
      const failed = takes.filter(({ status }) => status === 'rejected')
      expect(failed).toHaveLength(1)
      expect(takes.at(-1)).toBe(failed[0])
      expect((failed[0] as PromiseRejectedResult).reason).toBeInstanceOf(DatabaseError)
    } finally {
      await fixture.pool.query(`drop trigger refuse on ${name}.quota; drop function ${name}.refuse()`)
    }
    for (const subject of subjects) expect((await quota.peek(subject)).used).toBe(1)
  })
})

it('takes of many subjects at once by two processes, in opposite orders: each gets exactly its limit', async () => {
  const quotas = [fixture.dibs, fixture.other].map((dibs) =>
    dibs.quota('points', { limit: 5, waitMs: 5_000 }),
  )
  const takes = Array.from({ length: 4 }, () =>
    quotas.flatMap((quota, n) =>
      (n ? subjects : subjects.toReversed()).map((subject) => quota.tryTake(subject)),
    ),
  ).flat()
  const answers = await Promise.all(takes)
  expect(answers.filter(({ ok }) => ok)).toHaveLength(5 * subjects.length)
  await fixture.expectClean(...quotas)
})
