import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { PrismaPg } from '@prisma/adapter-pg'
import { sql as raw } from 'drizzle-orm'
import { drizzle } from 'drizzle-orm/node-postgres'
import knex, { type Knex } from 'knex'
import { Kysely, PostgresDialect } from 'kysely'
import type { Pool } from 'pg'
import postgres from 'postgres'
import { DataSource } from 'typeorm'
import { describe, expect, it } from 'vitest'
import { inTransaction } from '../../../../examples/races/in-transaction.js'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { PrismaClient } from '../../../../test/prisma/generated/client.js'
import { explore } from '../explore.js'
import type { ExploreHandle } from '../options.js'

const { url } = exploredSchema('create table counter (id int primary key, n int not null)')

type Add = (db: ExploreHandle, isLocking: boolean) => Promise<unknown>

/** The read in SQL. Each library causes the same lost update in its own way; `for update` prevents it. */
const read = (isLocking: boolean): string =>
  `select n from counter where id = 1${isLocking ? ' for update' : ''}`

const libraries: Record<string, Add> = {
  'pg, on the handle': (db, isLocking) =>
    inTransaction(db, async (tx) => {
      const { rows } = await tx.query(read(isLocking))
      await tx.query('update counter set n = $1 where id = 1', [rows[0].n + 1])
    }),
  'Kysely, on the handle': (db, isLocking) => {
    // Not destroyed: that would end the handle's pool.
    const kysely = new Kysely<{ counter: { id: number; n: number } }>({
      dialect: new PostgresDialect({ pool: db }),
    })
    return kysely.transaction().execute(async (trx) => {
      const query = trx.selectFrom('counter').select('n').where('id', '=', 1)
      const { n } = await (isLocking ? query.forUpdate() : query).executeTakeFirstOrThrow()
      await trx
        .updateTable('counter')
        .set({ n: n + 1 })
        .where('id', '=', 1)
        .execute()
    })
  },
  'Drizzle, on the handle': (db, isLocking) =>
    drizzle(db).transaction(async (tx) => {
      const { rows } = await tx.execute<{ n: number }>(raw.raw(read(isLocking)))
      await tx.execute(raw`update counter set n = ${(rows[0]?.n ?? 0) + 1} where id = 1`)
    }),
  'Knex, with the handle’s settings': async (db, isLocking) => {
    const k = knex({
      client: 'pg',
      connection: db.options as Knex.PgConnectionConfig,
      pool: { min: 0, max: 1 },
    })
    try {
      await k.transaction(async (trx) => {
        const query = trx('counter').where({ id: 1 })
        const { n } = await (isLocking ? query.forUpdate() : query).first('n')
        await trx('counter')
          .where({ id: 1 })
          .update({ n: n + 1 })
      })
    } finally {
      await k.destroy()
    }
  },
  'TypeORM, through the port': async (db, isLocking) => {
    const source = await new DataSource({ type: 'postgres', url: db.url, poolSize: 1 }).initialize()
    try {
      await source.transaction(async (manager) => {
        const [{ n }] = await manager.query(read(isLocking))
        await manager.query('update counter set n = $1 where id = 1', [n + 1])
      })
    } finally {
      await source.destroy()
    }
  },
  'postgres.js, through the port': async (db, isLocking) => {
    const sql = postgres(db.url, { max: 1, fetch_types: false })
    try {
      await sql.begin(async (tx) => {
        const [row] = await tx.unsafe(read(isLocking))
        await tx`update counter set n = ${row?.n + 1} where id = 1`
      })
    } finally {
      await sql.end()
    }
  },
  'Prisma, through the port': async (db, isLocking) => {
    const prisma = new PrismaClient({ adapter: new PrismaPg({ connectionString: db.url }) })
    try {
      await prisma.$transaction(async (tx) => {
        const [row] = await tx.$queryRawUnsafe<{ n: number }[]>(read(isLocking))
        await tx.$executeRaw`update counter set n = ${(row?.n ?? 0) + 1} where id = 1`
      })
    } finally {
      await prisma.$disconnect()
    }
  },
  'another process, through the port': (db, isLocking) =>
    promisify(execFile)(process.execPath, [
      '--input-type=module',
      '--eval',
      `
        import pg from 'pg'
        const client = new pg.Client(${JSON.stringify(db.url)})
        await client.connect()
        await client.query('begin')
        const { rows } = await client.query(${JSON.stringify(read(isLocking))})
        await client.query('update counter set n = $1 where id = 1', [rows[0].n + 1])
        await client.query('commit')
        await client.end()
      `,
    ]),
}

describe.each(Object.entries(libraries))('%s', (_, add) => {
  const run = (isLocking: boolean) =>
    explore({
      url,
      setup: (db) => db.query('insert into counter values (1, 0)'),
      actors: { alice: (db) => add(db, isLocking), bob: (db) => add(db, isLocking) },
      invariant: async (db: Pool) => {
        const { rows } = await db.query('select n from counter')
        expect(rows[0].n).toBe(2)
      },
      throws: false,
    })

  it('loses an update', async () => {
    const report = await run(false)
    expect(report.verdict).toBe('race')
    const counter = report.race?.steps.filter(({ text }) => /counter/.test(text)).map(({ unit }) => unit)
    expect(counter).toEqual(['alice', 'bob', 'bob', 'alice'])
    expect(report.race?.printout).toMatch(/update "?counter"? set "?n"? = 1 where/) // the parameter, whenever it was sent
    expect(report.notes).toEqual([])
  })

  it('does not when it locks the row', async () => {
    const report = await run(true)
    expect(report).toMatchObject({ verdict: 'passed', isExhaustive: true })
    expect(report.schedules).toBe(2) // whoever has the lock first
  })
})
