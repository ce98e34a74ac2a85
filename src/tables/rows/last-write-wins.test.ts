import { expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { BusyError, InvalidInputError, NotFoundError } from '../../errors.js'
import { countTraffic } from '../../testing/index.js'

const fixture = openTables(
  'create table {shop}.profile (id bigint primary key, name text, seen timestamptz, tags text[])',
  "insert into {shop}.profile values (1, 'ann', null, '{a}')",
)
const { at, withClient } = fixture

it('writes the named columns and no others', async () => {
  await withClient(async (other) => {
    await other.query(`update ${at('profile')} set name = 'eve' where id = 1`)
    await withClient(async (ours) => {
      const seen = new Date('2030-01-01T00:00:00.123Z')
      const waiting = fixture.dibs.rows.lastWriteWins(
        at('profile'),
        1,
        { seen, tags: ['x', null, '"'] },
        { tx: ours },
      )
      await fixture.blocked(ours)
      await other.query('commit')
      expect(await waiting).toEqual({ id: '1', name: 'eve', seen, tags: ['x', null, '"'] })
    })
  })
})

it('a row that was made anew while it was waited for is there', async () => {
  await withClient(async (other) => {
    await other.query(`delete from ${at('profile')}; insert into ${at('profile')} values (1, 'new')`)
    await withClient(async (ours) => {
      const waiting = fixture.dibs.rows.lastWriteWins(at('profile'), 1, { tags: [] }, { tx: ours })
      await fixture.blocked(ours)
      await other.query('commit')
      expect(await waiting).toMatchObject({ name: 'new', tags: [] })
    })
  })
})

it('is refused for a row that is not there, an empty patch, and a row that is locked for too long', async () => {
  const { lastWriteWins } = fixture.dibs.rows
  await expect(lastWriteWins(at('profile'), 2, { name: '' })).rejects.toThrow(NotFoundError)
  await expect(lastWriteWins(at('profile'), 1, {})).rejects.toThrow(InvalidInputError)
  await expect(lastWriteWins(at('profile'), 1, { id: 2 })).rejects.toThrow('it identifies the row')
  await withClient(async (other) => {
    await other.query(`select from ${at('profile')} for update`)
    const asked = lastWriteWins(at('profile'), 1, { name: '' }, { waitMs: 10 })
    await expect(asked).rejects.toThrow(BusyError)
  })
})

it('takes one round trip', async () => {
  const write = () => fixture.dibs.rows.lastWriteWins(at('profile'), 1, { name: 'x' })
  await write()
  expect(await countTraffic(fixture.pool, write)).toMatchObject({ roundTrips: 1, commits: 1 })
})
