import type pg from 'pg'
import { afterAll, beforeAll } from 'vitest'
import { directUrl, freshName, withPool } from './database.js'

/** One for each test file: advisory locks belong to a database, and files run at the same time. */
const database = freshName('explored')
const runAt = (connectionString: string, sql: string) =>
  withPool((pool) => pool.query(sql), { connectionString })
beforeAll(() => runAt(directUrl, `create database ${database}`))
afterAll(() => runAt(directUrl, `drop database ${database} with (force)`))

interface ExploredSchema {
  readonly url: string
  readonly schema: string
  query(sql: string): Promise<pg.QueryResult>
}

/** A schema with these tables, on the search path of whoever connects by the returned URL. */
export function exploredSchema(tables: string): ExploredSchema {
  const schema = freshName('explored')
  const target = new URL(directUrl)
  target.pathname = `/${database}`
  target.searchParams.set('options', `-c search_path=${schema}`)
  const query = (sql: string) => runAt(target.href, sql)
  beforeAll(() => query(`create schema ${schema}; ${tables}`))
  return { url: target.href, schema, query }
}
