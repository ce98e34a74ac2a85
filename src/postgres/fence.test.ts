import { afterAll, beforeAll, expect, it } from 'vitest'
import { openDatabase, type TestDatabase } from '../../test/open-database.js'
import { FenceLostError } from '../errors.js'
import { expectFence } from './fence.js'
import { statement } from './statement.js'

let database: TestDatabase

beforeAll(async () => {
  database = await openDatabase()
  await database.pool.query(
    `create table "${database.schema}".held (name text primary key, fence bigint not null, note text)`,
  )
})

afterAll(() => database.drop())

const take = statement(`
  insert into {schema}.held (name, fence) values ($1::text, 1)
  on conflict (name) do update set fence = held.fence + 1
  returning fence::text`)

const write = statement(`
  update {schema}.held set note = $3::text
  where name = $1::text and fence = $2::text::bigint
  returning note::text`)

it('refuses the late write of a holder who was taken over', async () => {
  const claim = async (): Promise<number> => Number((await database.send(take, ['report']))[0]?.fence)
  const writeUnder = async (fence: number, note: string) =>
    expectFence(await database.send(write, ['report', String(fence), note]), 'lock "report"', fence)

  const first = await claim()
  expect(await writeUnder(first, 'mine')).toEqual({ note: 'mine' })
  const second = await claim() // another takes over while the first still works
  const late = await writeUnder(first, 'late').catch((reason) => reason)
  expect(late).toBeInstanceOf(FenceLostError)
  expect(late).toMatchObject({ subject: 'lock "report"', fence: first, code: 'DIBS_FENCE_LOST' })
  expect(await writeUnder(second, 'theirs')).toEqual({ note: 'theirs' })
})
