import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { ConflictError, InsufficientError, InvalidInputError } from '../../errors.js'

const fixture = openTables(
  `create table {shop}.account (id int primary key, status text, step int, balance int, note text, version int not null default 1,
     twice int generated always as (version * 2) stored)`,
  "insert into {shop}.account (id, status, step, balance) values (1, 'open', 1, 10)",
)
const { at } = fixture
const counted = { versionColumn: 'version' }

/** Each way to write that does not ask for a version, of the account as it is. */
const writes = (options: object): Record<string, () => Promise<object>> => ({
  adjust: () => fixture.dibs.rows.adjust(at('account'), 1, { balance: -1 }, options),
  transition: () =>
    fixture.dibs.rows.transition(
      at('account'),
      1,
      { from: 'open', to: 'closed', set: { note: 'x' } },
      options,
    ),
  lastWriteWins: () => fixture.dibs.rows.lastWriteWins(at('account'), 1, { note: 'x' }, options),
})

describe.each(Object.keys(writes({})))('%s', (name) => {
  const write = (options: object) => writes(options)[name]?.()

  it('counts where it is told to, so that whoever has read before is refused', async () => {
    expect(await write(counted)).toMatchObject({ id: 1, version: 2 })
    const late = fixture.dibs.rows.update(at('account'), { id: 1, version: 1 }, { note: 'y' })
    await expect(late).rejects.toThrow(ConflictError)
  })

  it('leaves the version alone otherwise', async () => {
    expect(await write({})).toMatchObject({ id: 1, version: 1 })
  })

  it('refuses a version that cannot count', async () => {
    for (const [versionColumn, why] of [
      ['versoin', 'Did you mean version?'],
      ['status', 'must be a column of whole numbers (smallint, integer, bigint), and "status" is '],
      ['twice', 'names "twice", which the database makes'],
      ['id', 'names "id", but it identifies the row'],
    ])
      await expect(write({ versionColumn })).rejects.toThrow(why)
  })
})

it('is not counted where nothing is written', async () => {
  const asked = fixture.dibs.rows.adjust(at('account'), 1, { balance: -11 }, counted)
  await expect(asked).rejects.toThrow(InsufficientError)
  expect(await fixture.rows('account')).toMatchObject([{ version: 1 }])
})

it('is not what the same write sets in another way', async () => {
  const { adjust, transition, lastWriteWins } = fixture.dibs.rows
  const account = at('account')
  await expect(adjust(account, 1, { version: 1 }, counted)).rejects.toThrow(
    'names "version", but this call adjusts it',
  )
  const step = { from: 1, to: 2, column: 'step' }
  await expect(transition(account, 1, step, { versionColumn: 'step' })).rejects.toThrow(
    'names "step", but it is the state, which `to` sets',
  )
  await expect(transition(account, 1, { ...step, set: { version: 7 } }, counted)).rejects.toThrow(
    InvalidInputError,
  )
  await expect(lastWriteWins(account, 1, { version: 7 }, counted)).rejects.toThrow(
    'it is the version, which grows by itself',
  )
})
