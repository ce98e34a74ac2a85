import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { ConflictError, DatabaseError, DibsError, NotWrittenError } from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'

const fixture = openTables(
  `create table {shop}.log (note text);
   create table {shop}.exact (id int primary key, price numeric(5, 2), net inet unique);
   ${['cancelled', 'redirected', 'plain', 'hidden']
     .map(
       (name) =>
         `create table {shop}.${name} (id int primary key, status text, version int default 1, amount int default 5);`,
     )
     .join(' ')}
   create function {shop}.cancel() returns trigger language plpgsql as $$
     begin insert into {shop}.log values ('tried'); return null; end $$;
   create trigger t before insert or update on {shop}.cancelled for each row when (pg_trigger_depth() = 0)
     execute function {shop}.cancel();
   create function {shop}.redirect() returns trigger language plpgsql as $$
     begin
       update {shop}.redirected set status = new.status, version = new.version, amount = new.amount where id = new.id;
       return null;
     end $$;
   create trigger t before update on {shop}.redirected for each row when (pg_trigger_depth() = 0)
     execute function {shop}.redirect();
   create trigger t before update on {shop}.plain for each row execute function suppress_redundant_updates_trigger()`,
  `alter table {shop}.cancelled disable trigger t;
   insert into {shop}.cancelled values (1, 'new'); alter table {shop}.cancelled enable trigger t;
   insert into {shop}.redirected values (1, 'new'); insert into {shop}.plain values (1, 'new');
   insert into {shop}.hidden values (1, 'new'); insert into {shop}.exact values (1)`,
)
const { at, withClient } = fixture

const calls = {
  lastWriteWins: (tx: Tx, table: string) =>
    fixture.dibs.rows.lastWriteWins(table, 1, { status: 'x' }, { tx }),
  update: (tx: Tx, table: string) =>
    fixture.dibs.rows.update(table, { id: 1, version: 1 }, { status: 'x' }, { tx }),
  transition: (tx: Tx, table: string) =>
    fixture.dibs.rows.transition(table, 1, { from: 'new', to: 'paid' }, { tx }),
  adjust: (tx: Tx, table: string) => fixture.dibs.rows.adjust(table, 1, { amount: -1 }, { tx }),
}

/** Refused as unwritten, with nothing left behind and the transaction alive. */
async function isUnwritten(ask: (tx: Tx) => Promise<unknown>, table: string): Promise<void> {
  await withClient(async (tx) => {
    const error = await ask(tx).catch((error: NotWrittenError) => error)
    expect(error).toBeInstanceOf(NotWrittenError)
    expect(error).toMatchObject({ code: 'DIBS_NOT_WRITTEN', status: 409, retryable: false, table })
    expect(error).toHaveProperty(
      'message',
      expect.stringContaining(
        'a trigger answered null or another row than the new one, or wrote somewhere else',
      ),
    )
    await tx.query('commit')
  })
  expect(await fixture.rows('log', 'note')).toEqual([])
}

describe.each(['cancelled', 'redirected'])('what a trigger does in vain, %s,', (name) => {
  it.each(Object.entries(calls))('is undone and told as it is: %s', async (_, call) => {
    await isUnwritten((tx) => call(tx, at(name)), at(name))
    expect(await fixture.rows(name)).toEqual([{ id: 1, status: 'new', version: 1, amount: 5 }])
  })
})

it('an insert that a trigger cancels is told as it is', async () => {
  await isUnwritten(
    (tx) => fixture.dibs.rows.insertOnce(at('cancelled'), ['id'], { id: 2 }, { tx }),
    at('cancelled'),
  )
})

it('a write of what is there already, which a trigger leaves out, is told as it is', async () => {
  const write = (status: string) => (tx: Tx) =>
    fixture.dibs.rows.lastWriteWins(at('plain'), 1, { status }, { tx })
  await isUnwritten(write('new'), at('plain'))
  await withClient(async (tx) => expect(await write('other')(tx)).toMatchObject({ status: 'other' }))
})

it('a row that a policy shows and keeps from writes is told as it is', async () => {
  await fixture.pool.query(`alter table ${at('hidden')} enable row level security, force row level security;
    create policy seen on ${at('hidden')} for select using (true);
    create policy kept on ${at('hidden')} for update using (false)`)
  const role = `${fixture.shop}_clerk`
  await fixture.pool.query(`create role ${role}; grant usage on schema ${fixture.shop}, ${fixture.schema.name} to ${role};
    grant select, update on ${at('hidden')} to ${role}`)
  try {
    await withClient(async (tx) => {
      await tx.query(`set local role ${role}`)
      const error = await calls.adjust(tx, at('hidden')).catch((error) => error)
      expect(error).toBeInstanceOf(NotWrittenError)
    })
  } finally {
    await fixture.pool.query(`drop owned by ${role}; drop role ${role}`)
    await fixture.pool.query(`drop policy seen on ${at('hidden')}; drop policy kept on ${at('hidden')};
      alter table ${at('hidden')} disable row level security, no force row level security`)
  }
})

describe.each(['repeatable read', 'serializable'])('at %s', (level) => {
  const { lastWriteWins: _, ...refusing } = calls
  it.each(Object.entries(refusing))(
    'a refusal by what was there before is a conflict: %s',
    async (_, call) => {
      await fixture.pool.query(`update ${at('hidden')} set status = 'held', version = 0, amount = 0`)
      await withClient(async (tx) => {
        await tx.query(`set transaction isolation level ${level}`)
        await tx.query(`select from ${at('hidden')}`)
        await fixture.pool.query(`update ${at('hidden')} set status = 'new', version = 1, amount = 5`)
        const error = await call(tx, at('hidden')).catch((error) => error)
        expect(error).toBeInstanceOf(ConflictError)
        expect(error).toMatchObject({ sqlState: '40001', retryable: true })
      })
    },
  )

  it.each(Object.entries(refusing))('a refusal by what is still there is one: %s', async (_, call) => {
    await fixture.pool.query(`update ${at('hidden')} set status = 'held', version = 0, amount = 0`)
    await withClient(async (tx) => {
      await tx.query(`set transaction isolation level ${level}`)
      const error = await call(tx, at('hidden')).catch((error) => error)
      expect(error).toBeInstanceOf(DibsError)
      expect(error.sqlState).toBeUndefined()
      // The refused call holds no row lock: another session can write.
      await fixture.pool.query(
        `set lock_timeout = '1s'; update ${at('hidden')} set amount = 1; reset lock_timeout`,
      )
    })
  })
})

describe('what only the server knows to be wrong leaves the transaction alive', () => {
  it.each<[string, string, (tx: Tx) => Promise<unknown>]>([
    ['a value', '22003', (tx) => fixture.dibs.rows.lastWriteWins(at('exact'), 1, { price: 99999 }, { tx })],
    [
      'a value that is inserted',
      '22P02',
      (tx) => fixture.dibs.rows.insertOnce(at('exact'), ['id'], { id: 2, net: 'x' }, { tx }),
    ],
    ['an id', '22P02', (tx) => fixture.dibs.rows.lock(at('exact'), [{ net: 'x' }], { tx })],
    [
      'a value of a claim',
      '22003',
      (tx) => fixture.dibs.rows.claim(at('exact'), { tx, set: { price: 99999 } }),
    ],
    [
      'a condition',
      '42601',
      (tx) => fixture.dibs.rows.claim(at('exact'), { tx, where: { sql: 'id = = 1' } }),
    ],
    [
      'a function',
      '42883',
      (tx) => fixture.dibs.rows.claim(at('exact'), { tx, where: { sql: 'nowhere(id)' } }),
    ],
  ])('%s', async (_, sqlState, ask) => {
    await withClient(async (tx) => {
      const error = await ask(tx).catch((error) => error)
      expect(error).toBeInstanceOf(DatabaseError)
      expect(error).toMatchObject({ sqlState, retryable: false })
      expect((await tx.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    })
  })
})
