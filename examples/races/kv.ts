import type { Pool, PoolClient } from 'pg'

type Db = Pick<Pool | PoolClient, 'query'>

// #region kv
/** A key-value store of one table: `create table kv (key text primary key, value jsonb not null)`. */
export const kv = {
  get: async (db: Db, key: string) =>
    (await db.query('select value from kv where key = $1', [key])).rows[0]?.value,

  set: (db: Db, key: string, value: object) =>
    db.query('insert into kv values ($1, $2) on conflict (key) do update set value = $2', [key, value]),

  setIfAbsent: async (db: Db, key: string, value: object) =>
    (await db.query('insert into kv values ($1, $2) on conflict do nothing', [key, value])).rowCount === 1,

  del: (db: Db, key: string) => db.query('delete from kv where key = $1', [key]),
}
// #endregion

export const kvTable = 'create table kv (key text primary key, value jsonb not null)'
