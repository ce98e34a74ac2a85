import type pg from 'pg'
import { beforeAll } from 'vitest'
import { afterFile } from './after-file.js'
import { directUrl, freshName, withPool } from './database.js'

const runAt = (connectionString: string, sql: string) =>
  withPool((pool) => pool.query(sql), { connectionString })

interface FileDatabase {
  readonly name: string
  /** Resolves when the database exists. */
  readonly isThere: Promise<unknown>
}

/** The databases by the name that the connections of a test file have. */
const databases = new Map<string | undefined, FileDatabase>()

/** One for each test file: advisory locks belong to a database, and files run at the same time. */
function databaseOfFile(): FileDatabase {
  const file = process.env.PGAPPNAME
  const known = databases.get(file)
  if (known) return known
  const name = freshName('explored')
  const database = { name, isThere: runAt(directUrl, `create database ${name}`) }
  databases.set(file, database)
  afterFile(async () => {
    await database.isThere
    await runAt(directUrl, `drop database ${name} with (force)`)
  })
  return database
}

interface ExploredSchema {
  readonly url: string
  readonly schema: string
  query(sql: string): Promise<pg.QueryResult>
}

/** A schema with these tables, on the search path of whoever connects by the returned URL. */
export function exploredSchema(tables: string): ExploredSchema {
  const schema = freshName('explored')
  const database = databaseOfFile()
  const target = new URL(directUrl)
  target.pathname = `/${database.name}`
  target.searchParams.set('options', `-c search_path=${schema}`)
  const query = (sql: string) => runAt(target.href, sql)
  beforeAll(async () => {
    await database.isThere
    await query(`create schema ${schema}; ${tables}`)
  })
  return { url: target.href, schema, query }
}
