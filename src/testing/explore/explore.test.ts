import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { directUrl, dropSchema, freshName } from '../../../test/database.js'
import { explore } from './explore.js'

const schema = freshName('explore')
const target = new URL(directUrl)
target.searchParams.set('options', `-c search_path=${schema}`)
const url = target.href
const pool = new pg.Pool({ connectionString: url })

beforeAll(async () => {
  await pool.query(`create schema ${schema}`)
  await pool.query('create table counter (id int primary key, n int not null)')
})
afterAll(async () => {
  await pool.end()
  await dropSchema(schema)
})

describe('explore', () => {
  it('finds a lost update', async () => {
    const add = async (db: pg.Pool) => {
      const { rows } = await db.query('select n from counter where id = $1', [1])
      await db.query('update counter set n = $1 where id = $2', [rows[0].n + 1, 1])
    }
    const report = await explore({
      url,
      setup: (db) => db.query('insert into counter values (1, 0)'),
      actors: { alice: add, bob: add },
      invariant: async (db) => {
        const { rows } = await db.query('select n from counter')
        expect(rows[0].n).toBe(2)
      },
      throws: false,
    })
    console.log(report.race?.printout ?? report)
    expect(report.verdict).toBe('race')
  })
  it('passes an atomic update', async () => {
    const add = (db: pg.Pool) => db.query('update counter set n = n + 1 where id = 1')
    const report = await explore({
      url,
      setup: (db) => db.query('insert into counter values (1, 0)'),
      actors: { alice: add, bob: add },
      invariant: async (db) => {
        const { rows } = await db.query('select n from counter')
        expect(rows[0].n).toBe(2)
      },
    })
    console.log(report)
    expect(report.verdict).toBe('passed')
  })
})
