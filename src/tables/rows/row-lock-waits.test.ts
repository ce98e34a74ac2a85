import { describe, expect, it } from 'vitest'
import { realTime } from '../../../test/real-time.js'
import { openTables } from '../../../test/tables/open-tables.js'
import { BusyError } from '../../errors.js'
import { onEvent } from '../../postgres/events.js'

const fixture = openTables(
  'create table {shop}.account (id int primary key, balance int not null)',
  'insert into {shop}.account select n, n * 10 from generate_series(1, 5) n',
)
const { at, withClient } = fixture

it('no call waits with waitMs: 0, alone or in a transaction that stays usable', async () => {
  const { rows } = fixture.dibs
  const account = at('account')
  await withClient(async (other) => {
    await other.query(`update ${account} set balance = 0 where id = 2`)
    await other.query(`insert into ${account} values (6, 0)`)
    await withClient(async (ours) => {
      for (const options of [{ waitMs: 0 }, { waitMs: 0, tx: ours }])
        for (const call of [
          () => rows.adjust(account, 2, { balance: 1 }, options),
          () => rows.lastWriteWins(account, 2, { balance: 1 }, options),
          () => rows.insertOnce(account, ['id'], { id: 6, balance: 1 }, options),
        ]) {
          const error = await call().catch((thrown: unknown) => thrown)
          expect(error).toBeInstanceOf(BusyError)
          expect(error).toMatchObject({ waitedMs: 0, message: expect.stringMatching(/^Did not wait for /) })
        }
      expect(
        (await rows.adjust(account, 3, { balance: 1 }, { waitMs: 0, tx: ours })) as object,
      ).toMatchObject({
        balance: 31,
      })
    })
  })
})

describe('a wait that ends', () => {
  it('is BusyError with those in the way, and leaves the transaction alive and without locks', async () => {
    const events: unknown[] = []
    const stop = onEvent('dibs:row.locked-out', (event) => events.push(event))
    await withClient(async (other) => {
      await other.query(`update ${at('account')} set balance = 0 where id = 2`)
      const { rows } = await other.query('select pg_backend_pid() as pid')
      await withClient(async (ours) => {
        await ours.query("set local lock_timeout = '7s'")
        const error = await fixture.dibs.rows
          .lock(at('account'), [1, 2], { tx: ours, waitMs: 20 })
          .catch((error) => error)
        expect(error).toBeInstanceOf(BusyError)
        expect(error.waitedMs).toBeGreaterThanOrEqual(20)
        expect(error).toMatchObject({ subject: `rows of table "${at('account')}"` })
        expect(error.blockers).toEqual([
          {
            pid: rows[0].pid,
            application: 'shop',
            since: expect.any(Date),
            query: expect.any(String),
            isSure: true,
          },
        ])
        expect(error.message).toContain(`Blocked by process ${rows[0].pid} (shop, in a transaction since `)
        await withClient(async (third) => {
          const free = await third.query(
            `select id from ${at('account')} where id = 1 for update skip locked`,
          )
          expect(free.rowCount).toBe(1)
        })
        expect((await ours.query('show lock_timeout')).rows).toEqual([{ lock_timeout: '7s' }])
        await fixture.dibs.rows.lock(at('account'), [1], { tx: ours })
        expect((await ours.query('show lock_timeout')).rows).toEqual([{ lock_timeout: '7s' }])
      })
    })
    stop()
    expect(events).toMatchObject([{ table: at('account'), waitedMs: expect.any(Number), blockers: 1 }])
  })

  it('names all who share the lock', async () => {
    await withClient((one) =>
      withClient(async (other) => {
        const pids: number[] = []
        for (const client of [one, other]) {
          await client.query(`select from ${at('account')} where id = 1 for share`)
          pids.push((await client.query('select pg_backend_pid() as pid')).rows[0].pid)
        }
        await fixture.dibs.transaction(async (tx) => {
          const error = await fixture.dibs.rows
            .lock(at('account'), [1], { tx, ifLocked: 'fail' })
            .catch((error) => error)
          expect(error.waitedMs).toBe(0)
          const sure = error.blockers.filter(({ isSure }: { isSure: boolean }) => isSure)
          expect(sure.map(({ pid }: { pid: number }) => pid).toSorted()).toEqual(pids.toSorted())
        })
      }),
    )
  })

  it('names who may be it where PostgreSQL does not say', async () => {
    await withClient(async (other) => {
      await other.query(
        `savepoint s; select from ${at('account')} where id = 1 for update; release savepoint s`,
      )
      const { rows } = await other.query('select pg_backend_pid() as pid')
      await fixture.dibs.transaction(async (tx) => {
        const error = await fixture.dibs.rows
          .lock(at('account'), [1], { tx, ifLocked: 'fail' })
          .catch((error) => error)
        expect(error.blockers).toMatchObject([{ pid: rows[0].pid, isSure: false }])
        expect(error.message).toContain('possibly process')
      })
    })
  })

  it('is for the table too, and asks it nothing more', async () => {
    await withClient(async (other) => {
      await other.query(`lock table ${at('account')} in access exclusive mode`)
      const { rows } = await other.query('select pg_backend_pid() as pid')
      await fixture.dibs.transaction(async (tx) => {
        const error = await fixture.dibs.rows
          .lock(at('account'), [1], { tx, waitMs: 10 })
          .catch((error) => error)
        expect(error.blockers).toMatchObject([{ pid: rows[0].pid, isSure: false }])
        expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }])
      })
    })
  })

  it('is for all rows together', realTime, async () => {
    await withClient(async (one) => {
      await one.query(`select from ${at('account')} where id = 1 for update`)
      await withClient(async (two) => {
        await two.query(`select from ${at('account')} where id = 2 for update`)
        await withClient(async (ours) => {
          const startedAt = performance.now()
          const waiting = fixture.dibs.rows
            .lock(at('account'), [1, 2], { tx: ours, waitMs: 2_000 })
            .catch((error) => error)
          await fixture.blocked(ours)
          // A part of the wait is over before the first row is free.
          await fixture.pool.query('select pg_sleep(1.5)')
          await one.query('commit')
          expect(await waiting).toBeInstanceOf(BusyError)
          expect(performance.now() - startedAt).toBeLessThan(3_200) // row by row it would be 3,500
        })
      })
    })
  })

  it('may be no wait at all: locked rows are left out', async () => {
    await withClient(async (other) => {
      await other.query(`select from ${at('account')} where id = 2 for update`)
      await fixture.dibs.transaction(async (tx) => {
        const rows = await fixture.dibs.rows.lock<{ id: number }>(at('account'), [3, 2, 77, 1], {
          tx,
          ifLocked: 'skip',
        })
        expect(rows.map(({ id }) => id)).toEqual([3, 1])
      })
    })
  })
})
