import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { BusyError, InvalidInputError, NotFoundError, StateConflictError } from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'
import { countTraffic } from '../../testing/index.js'
import type { StateChange } from './transition.js'

const fixture = openTables(
  `create type {shop}.state as enum ('new', 'held', 'paid', 'sent');
   create table {shop}.orders (id int primary key, status {shop}.state, stage int not null default 1, paid_at timestamptz);
   create table {shop}.task (id int primary key, "Done?" boolean)`,
  `insert into {shop}.orders values (1, 'new'), (2, 'paid'), (3, null);
   insert into {shop}.task values (1, false)`,
)
const { at, withClient } = fixture
const pay = (
  tx: Tx | undefined,
  id: number,
  step: Partial<StateChange> = {},
  patch?: object,
  options?: object,
) =>
  fixture.dibs.rows.transition(
    at('orders'),
    id,
    { from: ['new', 'held'], to: 'paid', ...step, set: { ...patch } },
    { ...options, tx },
  )

describe('a row in one of the states', () => {
  it('goes on to the next, with what is written beside', async () => {
    const paid_at = new Date('2030-01-01')
    expect(await pay(undefined, 1, {}, { paid_at })).toEqual({ id: 1, status: 'paid', stage: 1, paid_at })
    expect(await pay(undefined, 1, { from: 'paid', to: 'sent' })).toMatchObject({ status: 'sent', paid_at })
  })

  it('keeps its state in any column', async () => {
    expect(await pay(undefined, 1, { from: 1, to: 2, column: 'stage' })).toMatchObject({
      stage: 2,
      status: 'new',
    })
    const done = { from: false, to: true, column: 'Done?' }
    expect(await fixture.dibs.rows.transition(at('task'), 1, done)).toEqual({ id: 1, 'Done?': true })
  })

  it('lives and dies with the transaction', async () => {
    await withClient(async (tx) => {
      await pay(tx, 1)
      expect(await pay(tx, 1, { from: 'paid', to: 'sent' })).toMatchObject({ status: 'sent' })
    })
    expect((await fixture.rows('orders'))[0]).toMatchObject({ status: 'new' })
  })
})

describe('a row in another state', () => {
  it('is StateConflictError, which says which', async () => {
    const error = await pay(undefined, 2).catch((error) => error)
    expect(error).toBeInstanceOf(StateConflictError)
    expect(error).toMatchObject({
      ...{ code: 'DIBS_STATE_CONFLICT', status: 409, retryable: false },
      ...{ table: at('orders'), id: 2, column: 'status', expected: ['new', 'held'], current: 'paid' },
    })
    expect(error.message).toBe(
      `Column "status" of row 2 of table "${at('orders')}" is "paid", and would have to be "new" or "held". Nothing was changed.`,
    )
    await expect(pay(undefined, 3)).rejects.toMatchObject({ current: null })
  })

  it('leaves the transaction alive, and the row to others', async () => {
    await withClient(async (other) => {
      await pay(other, 1)
      await withClient(async (ours) => {
        const waiting = pay(ours, 1).catch((error) => error)
        await fixture.blocked(ours)
        await other.query('commit')
        expect(await waiting).toMatchObject({ code: 'DIBS_STATE_CONFLICT', current: 'paid' })
        await withClient(async (third) => {
          const free = await third.query(`select from ${at('orders')} where id = 1 for update skip locked`)
          expect(free.rowCount).toBe(1)
        })
      })
    })
  })
})

it('a row that is not there is NotFoundError, one that is locked for too long BusyError', async () => {
  await expect(pay(undefined, 9)).rejects.toThrow(NotFoundError)
  await withClient(async (other) => {
    await pay(other, 1)
    await expect(pay(undefined, 1, {}, {}, { waitMs: 10 })).rejects.toThrow(BusyError)
  })
})

it('takes one round trip, also where it is refused', async () => {
  await pay(undefined, 1)
  const again = await countTraffic(fixture.pool, () => pay(undefined, 1).catch(() => 'refused'))
  expect(again).toMatchObject({ value: 'refused', roundTrips: 1 })
})

describe('refused before it is sent', () => {
  it.each([
    ['from', { from: [] }, {}, 'must not be empty'],
    ['from', { from: null }, {}, 'must be a state, not null'],
    ['from[0]', { from: 'open' }, {}, 'must be one of new, held, paid, sent, not "open"'],
    ['to', { to: undefined }, {}, 'must be a state, not undefined'],
    ['to', { to: 'done' }, {}, 'must be one of new, held, paid, sent'],
    ['column', { column: 'state' }, {}, 'Did you mean'],
    ['when', { when: 1 }, {}, 'Unknown option'],
    ['set.status', {}, { status: 'new' }, 'it is the state, which `to` sets'],
    ['set.id', {}, { id: 1 }, 'it identifies the row'],
  ])('%s', async (field, step, patch, problem) => {
    const error = await pay(undefined, 1, step as never, patch).catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error.field).toBe(field)
    expect(error.message).toContain(problem)
  })

  it('what is no step', async () => {
    const asked = fixture.dibs.rows.transition(at('orders'), 1, 'paid' as never)
    await expect(asked).rejects.toThrow('`step` must be { from, to }, not a string')
  })
})
