import { describe, expect, it } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { until } from '../../../test/database.js'
import { deferred } from '../../../test/deferred.js'
import { movingClock } from '../../../test/moving-clock.js'
import { realTime } from '../../../test/real-time.js'
import { BusyError, FingerprintMismatchError, InProgressError } from '../../errors.js'
import { renderSchema } from '../../postgres/identifier.js'
import type { Claim } from '../claim.js'
import {
  endClaim,
  finishClaim,
  forgetExpiredClaims,
  renewClaim,
  takeOverClaims,
} from '../claim-statements.js'

const fixture = openClaims()
const at = { scope: 's', key: 'k' }
const leased = { ...at, mode: 'leased' } as const

/** A claim without a holder: with `-infinity` it was released, otherwise its lease has expired. */
const put = (columns: Record<string, unknown>): Promise<unknown> => {
  const row = { ...at, id: 'i', holder: 'h', fence: 100, created_at: '2026-01-01', ...columns }
  const names = Object.keys(row)
  return fixture.pool.query(
    `insert into ${fixture.schema.name}.claim (${names}) values (${names.map((_, n) => `$${n + 1}`)})`,
    Object.values(row),
  )
}

const read = async (): Promise<Record<string, unknown>> => {
  const { rows } = await fixture.pool.query(
    `select status, fence::text, lease_until, completed_at, expires_at, open_operation from ${fixture.schema.name}.claim`,
  )
  return rows[0]
}

const send = (statement: { text: string }, values: (string | null)[]) =>
  fixture.pool.query(renderSchema(statement.text, fixture.schema.name), values)

async function someoneWaits(): Promise<boolean> {
  const { rows } = await fixture.pool.query(
    "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like $1",
    [`%${fixture.schema.name}%`],
  )
  return rows.length > 0
}

describe('time is read after the row is locked', () => {
  const BEFORE = new Date('2026-03-01T00:00:00Z')
  const AFTER = new Date('2026-03-01T00:01:00Z')
  const leaseMs = 600_000

  /** Runs `call` while the row is locked, and lets a minute pass before it gets the lock. */
  async function waitAMinute(call: () => Promise<unknown>): Promise<unknown> {
    const { pool, schema } = fixture
    const { name } = schema
    const clock = await movingClock(pool, name, BEFORE)
    const blocker = await pool.connect()
    try {
      await blocker.query('begin')
      await blocker.query(`select 1 from ${name}.claim for update`)
      const ended = call()
      await until(someoneWaits, 'the call to wait')
      await clock.set(AFTER)
      await blocker.query('commit')
      return await ended
    } finally {
      blocker.release()
    }
  }

  it('by a takeover', async () => {
    await put({ lease_until: '2026-02-01' })
    let leaseUntil: unknown
    await waitAMinute(async () => {
      await fixture.dibs.once({ ...leased, leaseMs, waitMs: 10_000 }, async () => {
        leaseUntil = (await read()).lease_until
      })
    })
    expect(leaseUntil).toEqual(new Date(AFTER.getTime() + leaseMs))
  })

  it('by a renewal', async () => {
    await put({ lease_until: '2026-04-01' })
    await waitAMinute(() => send(renewClaim, ['s', 'k', '100', '60000', String(leaseMs)]))
    expect((await read()).lease_until).toEqual(new Date(AFTER.getTime() + leaseMs))
  })

  it('by an outcome', async () => {
    await put({ lease_until: '2026-04-01' })
    await waitAMinute(() =>
      send(finishClaim, ['s', 'k', '100', '60000', 'active', '1', String(leaseMs), 'false']),
    )
    expect(await read()).toMatchObject({
      completed_at: AFTER,
      expires_at: new Date(AFTER.getTime() + leaseMs),
    })
  })

  it('by an end', async () => {
    await put({ lease_until: '2026-04-01' })
    await waitAMinute(() => send(endClaim, ['s', 'k', '100', '60000', '5000', null, null, 'false']))
    expect((await read()).lease_until).toEqual(new Date(AFTER.getTime() + 5_000))
  })

  it('by whoever forgets', async () => {
    await put({ lease_until: '2026-03-01T00:00:30Z' })
    expect(await waitAMinute(() => fixture.dibs.claims.forget(at))).toEqual({ ok: true })
  })
})

describe('a write that names another fence', () => {
  const LEASE = '2027-04-01T00:00:00Z'
  const finish = async (values: (string | null)[]) =>
    JSON.parse((await send(finishClaim, ['s', 'k', ...values])).rows[0].result)

  it('changes nothing', async () => {
    await put({ lease_until: LEASE })
    const before = await read()
    expect((await send(renewClaim, ['s', 'k', '99', '1000', '5'])).rows[0]).toEqual({ state: 'lost' })
    expect((await send(endClaim, ['s', 'k', '99', '1000', null, null, null, 'false'])).rows[0]).toEqual({
      state: 'lost',
    })
    expect(await finish(['99', '1000', 'active', '1', '1000', 'false'])).toMatchObject({
      state: 'lost',
      status: 'pending',
    })
    expect(await read()).toEqual(before)
  })

  it('is an error where COMMIT would follow', async () => {
    await put({ lease_until: LEASE })
    await expect(finish(['99', null, 'active', '1', '1000', 'true'])).rejects.toMatchObject({ code: 'DIB01' })
  })

  it('and one that comes a second time is told what is there', async () => {
    await put({ lease_until: LEASE })
    const first = await finish(['100', '1000', 'active', '"first"', '1000000', 'false'])
    expect(first).toEqual({ state: 'stored', completedAt: expect.any(Number) })
    expect(await finish(['100', '1000', 'active', '"second"', '1000000', 'false'])).toEqual(first)
    expect(await fixture.dibs.claims.get(at)).toMatchObject({ outcome: 'first' })
    expect((await send(renewClaim, ['s', 'k', '100', '1000', '5'])).rows[0]).toEqual({ state: 'stored' })
  })
})

it('waits so long in all, however often it has to begin anew', async () => {
  const { pool, schema, dibs } = fixture
  const { name } = schema
  await pool.query(`create or replace function ${name}.limit_lock_wait(ms integer) returns text language plpgsql as
    $body$ begin raise notice 'bound: %', ms; return set_config('lock_timeout', ms::text, true); end $body$`)
  const bounds: number[] = []
  const note = ({ message = '' }) => {
    const [, ms] = /^bound: (\d+)$/.exec(message) ?? []
    if (ms) bounds.push(Number(ms))
  }
  const blocker = await pool.connect()
  try {
    pool.on('acquire', (client) => client.off('notice', note).on('notice', note))
    await blocker.query('begin')
    await blocker.query(`insert into ${name}.claim (scope, key, id, holder, fence, lease_until, created_at)
      values ('s', 'k', 'i', 'h', 1, '-infinity', now())`)
    const ended = dibs.once({ ...leased, waitMs: 5_000 }, async () => [...bounds])
    await until(someoneWaits, 'the call to wait')
    await new Promise((resolve) => setTimeout(resolve, 300))
    await blocker.query('commit')
    // The first read and the insert that waited, then a read of the row that was found, and its lock.
    const [first, ...later] = await ended
    expect(first).toBe(5_000)
    expect(later.length).toBeGreaterThan(0)
    for (const ms of later) expect(ms).toBeLessThanOrEqual(5_000 - 300)
  } finally {
    blocker.release()
  }
})

it('waits so long in all behind holders who give up one after the other', realTime, async () => {
  const { pool, schema, dibs } = fixture
  const insert = `insert into ${schema.name}.claim (scope, key, id, holder, fence, lease_until, created_at)
    values ('s', 'k', 'i', 'h', 1, '-infinity', now()) on conflict do nothing`
  const first = deferred()
  const hold = async () => {
    const client = await pool.connect()
    await client.query('begin')
    await client.query(insert)
    first.resolve()
    await new Promise((resolve) => setTimeout(resolve, 300))
    await client.query('rollback')
    client.release()
  }
  const holders = Array.from({ length: 9 }, hold)
  await first.promise
  const startedAt = performance.now()
  await dibs
    .once({ ...at, waitMs: 400 }, async () => 1)
    .catch((error) => expect(error).toBeInstanceOf(BusyError))
  expect(performance.now() - startedAt).toBeLessThan(2_000)
  await Promise.all(holders)
})

it('does not lock what another holds, once it knows', async () => {
  const { pool, schema, dibs } = fixture
  await put({ lease_until: '-infinity' })
  const holder = await pool.connect()
  try {
    await dibs.transaction(async (tx) => {
      await holder.query('begin')
      await holder.query(`update ${schema.name}.claim set lease_until = '2100-01-01'`)
      const call = dibs.once({ ...at, tx, waitMs: 2_000 }, async () => 1)
      call.catch(() => {})
      await until(someoneWaits, 'the call to wait')
      await holder.query('commit') // the holder has taken the free claim
      await expect(call).rejects.toThrow(BusyError)
      await holder.query(`select 1 from ${schema.name}.claim for update nowait`)
    })
  } finally {
    holder.release()
  }
})

it('is left alone by maintenance while another claims it anew, which nobody waits for', async () => {
  const { pool, schema } = fixture
  await put({ status: 'active', completed_at: '2026-01-01', expires_at: '2026-01-02' })
  const [claims, maintains] = [await pool.connect(), await pool.connect()]
  const forget = async () =>
    (await maintains.query(renderSchema(forgetExpiredClaims.text, schema.name), ['10'])).rows
  try {
    await claims.query(`begin; update ${schema.name}.claim set expires_at = '2100-01-01'`)
    await maintains.query('begin; set local lock_timeout = 200')
    expect(await forget()).toEqual([{ count: '0' }])
    await claims.query('rollback')
    expect(await forget()).toEqual([{ count: '1' }])
    await maintains.query('rollback')
  } finally {
    claims.release(true)
    maintains.release(true)
  }
})

describe('a fence', () => {
  it('grows also when the clock is set back', async () => {
    await put({ lease_until: '-infinity', fence: 5_000_000_000_000_000 })
    const fences: number[] = []
    for (let n = 0; n < 3; n++) {
      const run = fixture.dibs.once(leased, async ({ fence }) => {
        fences.push(fence)
        throw new Error('again')
      })
      await run.catch(() => {})
    }
    // Each attempt and each release raises the fence.
    expect(fences).toEqual([5_000_000_000_000_001, 5_000_000_000_000_003, 5_000_000_000_000_005])
  })

  it('grows also when the claim was forgotten, and when it expired', async () => {
    const fenceOf = () => fixture.dibs.once({ ...leased, keepMs: 1_000 }, async ({ fence }: Claim) => fence)
    const first = await fenceOf()
    await fixture.dibs.claims.forget(at)
    const second = await fenceOf()
    await fixture.schema.clock.advance(1_000)
    const third = await fenceOf()
    expect(second).toBeGreaterThan(first)
    expect(third).toBeGreaterThan(second)
  })

  it('is raised by maintenance that takes over, so that nothing of a late holder is taken any more', async () => {
    await put({ lease_until: '2026-01-02', open_operation: 'pay', input: '{}', fence: 5_000_000_000_000_000 })
    const [taken] = (await send(takeOverClaims, ['pay', 'other', '60000', '60000', '5', '{}', '1'])).rows
    expect(JSON.parse(taken.result)).toMatchObject({ state: 'taken over', fence: 5_000_000_000_000_001 })
    const late = ['s', 'k', '5000000000000000', '1000']
    expect((await send(renewClaim, [...late, '60000'])).rows).toEqual([{ state: 'lost' }])
    const [finished] = (await send(finishClaim, [...late, 'active', '1', '60000', 'false'])).rows
    expect(JSON.parse(finished.result)).toMatchObject({ state: 'lost', status: 'pending' })
  })

  it('is raised by a release, so that nothing of that attempt is taken any more', async () => {
    const failed = fixture.dibs.once(leased, async () => {
      throw new Error('released')
    })
    await failed.catch(() => {})
    const before = await read()
    await fixture.dibs.once(leased, () => Promise.reject(new Error('again'))).catch(() => {})
    expect(Number((await read()).fence)).toBeGreaterThan(Number(before.fence) + 1)
  })
})

describe('a claim', () => {
  it('that is held does not expire, however short it is to be kept', async () => {
    const began = deferred()
    const goOn = deferred()
    const held = fixture.dibs.once({ ...leased, keepMs: 1_000, leaseMs: 3_600_000 }, async () => {
      began.resolve()
      await goOn.promise
    })
    await began.promise
    await fixture.schema.clock.advance(60_000)
    await expect(fixture.dibs.once(leased, async () => 2)).rejects.toThrow(InProgressError)
    goOn.resolve()
    await held
  })

  it('takes the fingerprint of the first who gives one', async () => {
    await fixture.dibs.once(leased, () => Promise.reject(new Error('released'))).catch(() => {})
    await fixture.dibs
      .once({ ...leased, fingerprint: 1 }, () => Promise.reject(new Error('released')))
      .catch(() => {})
    const other = fixture.dibs.once({ ...leased, fingerprint: 2 }, async () => 2)
    await expect(other).rejects.toThrow(FingerprintMismatchError)
  })

  it('of a transaction that is committed before the outcome keeps it from committing', async () => {
    const client = await fixture.pool.connect()
    await client.query('begin')
    const began = deferred()
    const goOn = deferred()
    const forgotten = fixture.dibs.once({ ...at, tx: client }, async () => {
      began.resolve()
      await goOn.promise
    })
    forgotten.catch(() => {})
    await began.promise
    await expect(client.query('commit')).rejects.toMatchObject({
      constraint: 'await_joined_calls_before_commit',
    })
    expect(await fixture.dibs.onceDetailed(at, async () => 2)).toMatchObject({ value: 2, attempt: 1 })
    goOn.resolve()
    await expect(forgotten).rejects.toThrow()
    client.release()
  })

  it.each([
    ['of another status', { status: 'done', completed_at: '2026-01-01' }, '22P02'],
    ['pending without a lease', { status: 'pending' }, '23514'],
    [
      'over with a lease',
      { status: 'active', completed_at: '2026-01-01', lease_until: '2026-01-01' },
      '23514',
    ],
    ['over without a time', { status: 'active' }, '23514'],
    ['pending with the time of its end', { lease_until: '2026-01-01', completed_at: '2026-01-01' }, '23514'],
  ])('cannot be %s', async (_, columns, code) => {
    await expect(put(columns)).rejects.toMatchObject({ code })
  })

  it('is found by its key, its expiry and its operation without reading the others', async () => {
    const { pool, schema } = fixture
    await pool.query(`
      insert into ${schema.name}.claim (scope, key, id, holder, status, fence, created_at, completed_at, expires_at)
      select 's', n::text, 'i', 'h', 'active', 1, now(), now(), now() + n * interval '1 second' from generate_series(1, 20000) n;
      analyze ${schema.name}.claim`)
    const plan = async (sql: string) =>
      JSON.stringify((await pool.query(`explain (format json) ${sql}`)).rows)
    const from = `from ${schema.name}.claim c where`
    expect(await plan(`select * ${from} c.scope = 's' and c.key = '77'`)).toContain('claim_pkey')
    expect(
      await plan(`select * ${from} c.expires_at <= now() and (c.status <> 'pending' or c.lease_until = '-infinity')
        order by c.expires_at limit 1000`),
    ).toContain('claim_expires_at_idx')
    expect(
      await plan(
        `select * ${from} c.open_operation = 'pay' and c.lease_until <= now() order by c.scope, c.key limit 10`,
      ),
    ).toContain('claim_open_operation_idx')
    expect(
      await plan(`select * ${from} (c.scope, c.key) > ('s', '5') order by c.scope, c.key limit 10`),
    ).toContain('claim_pkey')
  })
})
