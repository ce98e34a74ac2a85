import pg from 'pg'
import { afterAll, beforeAll } from 'vitest'
import { directUrl, dropSchema, freshName } from './database.js'

/** A schema for the tests of one file, with these tables, on the search path of whoever connects by the returned URL. */
export function exploredSchema(tables: string): { readonly url: string; readonly schema: string } {
  const schema = freshName('explored')
  const target = new URL(directUrl)
  target.searchParams.set('options', `-c search_path=${schema}`)
  beforeAll(async () => {
    const client = new pg.Client({ connectionString: target.href })
    await client.connect()
    await client.query(`create schema ${schema}; ${tables}`)
    await client.end()
  })
  afterAll(() => dropSchema(schema))
  return { url: target.href, schema }
}
