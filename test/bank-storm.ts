import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { CommitOutcomeUnknownError, DibsError } from '../src/errors.js'
import type { Database } from '../src/postgres/database.js'
import type { PgProxy } from '../src/testing/index.js'
import { directUrl } from './database.js'

export interface BankReport {
  /** Transfers whose caller was told: done, not done, unknown. */
  readonly kept: number
  readonly refused: number
  readonly unknown: number
  /** The number of unknown transfers that are in the database. */
  readonly unknownButKept: number
  readonly kills: number
  readonly retries: number
  /** Transfers whose caller got a result that the database contradicts. Must be empty. */
  readonly lies: readonly string[]
  readonly total: number
}

const ACCOUNTS = 8
export const TOTAL = 100 * ACCOUNTS

const ENOUGH = 300

/**
 * Transfers between few accounts at SERIALIZABLE, from many callers at once, while backends are killed and
 * answers to COMMIT are cut off at random. Each transfer leaves its id in a ledger, so that what each caller was told can be held against it.
 */
export async function bankStorm(database: Database, proxy: PgProxy, seconds: number): Promise<BankReport> {
  const at = `"${database.schema}"`
  await database.pool.query(`
    create table ${at}.bank (id int primary key, balance int not null check (balance >= 0));
    create table ${at}.ledger (id uuid primary key);
    insert into ${at}.bank select n, 100 from generate_series(1, ${ACCOUNTS}) n`)
  const until = Date.now() + seconds * 1000
  // On a machine that has other things to do, longer, so that enough is tested.
  const goesOn = () => Date.now() < until || (told.size < ENOUGH && Date.now() < until + 60_000)
  const told = new Map<string, 'kept' | 'refused' | 'unknown'>()
  let retries = 0

  async function transfer(): Promise<void> {
    const id = randomUUID()
    try {
      await database.transaction(
        async (tx) => {
          if (tx.attempt > 1) retries++
          const { rows } = await tx.query<{ id: number; balance: number }>(
            `select id, balance from ${at}.bank order by random() limit 2`,
          )
          const [from, to] = rows
          if (!from || !to) throw new Error('no accounts')
          const amount = Math.min(from.balance, 1 + Math.floor(Math.random() * 5))
          // Computed here from what was read: wrong at READ COMMITTED, right with a level that refuses the overlap.
          await tx.query(`update ${at}.bank set balance = $2 where id = $1`, [from.id, from.balance - amount])
          await tx.query(`update ${at}.bank set balance = $2 where id = $1`, [to.id, to.balance + amount])
          await tx.query(`insert into ${at}.ledger values ($1)`, [id])
        },
        { isolation: 'serializable', deadlineMs: 10_000, maxAttempts: 20 },
      )
      told.set(id, 'kept')
    } catch (error) {
      if (!(error instanceof DibsError)) throw error
      told.set(id, error instanceof CommitOutcomeUnknownError ? 'unknown' : 'refused')
    }
  }

  const killer = new pg.Client({ connectionString: directUrl, application_name: 'killer' })
  await killer.connect()
  let kills = 0
  const caller = async () => {
    while (goesOn()) await transfer()
  }
  const kill = async () => {
    while (goesOn()) {
      await sleep(30 + Math.random() * 90)
      const { rowCount } = await killer.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
         where application_name = $1 and (query like '%' || $2 || '%' or query = 'commit')
         order by random() limit 1`,
        [process.env.PGAPPNAME, database.schema],
      )
      kills += rowCount ?? 0
    }
  }
  const cut = async () => {
    while (goesOn()) {
      await sleep(50 + Math.random() * 100)
      const cut = proxy.inject({ kind: 'cut', when: 'after', statement: '/^commit$/', times: 'always' })
      await sleep(5)
      cut.end()
    }
  }
  await Promise.all([kill(), cut(), ...Array.from({ length: 8 }, caller)])
  await killer.end()

  const { rows } = await database.pool.query<{ id: string }>(`select id from ${at}.ledger`)
  const ledger = new Set(rows.map(({ id }) => id))
  const sum = await database.pool.query<{ total: number }>(
    `select sum(balance)::int as total from ${at}.bank`,
  )
  const ids = (kind: string) => [...told].filter(([, word]) => word === kind).map(([id]) => id)
  return {
    kept: ids('kept').length,
    refused: ids('refused').length,
    unknown: ids('unknown').length,
    unknownButKept: ids('unknown').filter((id) => ledger.has(id)).length,
    kills,
    retries,
    lies: [...ids('kept').filter((id) => !ledger.has(id)), ...ids('refused').filter((id) => ledger.has(id))],
    total: sum.rows[0]?.total ?? 0,
  }
}
