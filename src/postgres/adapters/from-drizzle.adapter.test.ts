import { drizzle as drizzleNodePg } from 'drizzle-orm/node-postgres'
import { pgSchema, text } from 'drizzle-orm/pg-core'
import { drizzle as drizzlePostgresJs } from 'drizzle-orm/postgres-js'
import pg from 'pg'
import postgres from 'postgres'
import { expect, it } from 'vitest'
import { describeConformance } from '../../../test/conformance/describe-conformance.js'
import { holdWhenLost } from '../../../test/conformance/hold-when-lost.js'
import { url, viaPgBouncer } from '../../../test/database.js'
import { NotInTransactionError } from '../../errors.js'
import { fromDrizzle } from './from-drizzle.js'

const itemsOf = (schema: string) => pgSchema(schema).table('items', { id: text(), label: text() })

describeConformance('a transaction of Drizzle over pg', {
  adapt: fromDrizzle,
  async open(schema) {
    const pool = new pg.Pool({ connectionString: url, max: 1 })
    pool.on('connect', (client) => client.on('error', () => {}))
    const db = drizzleNodePg(pool, { casing: 'camelCase' })
    const items = itemsOf(schema)
    return {
      transaction: (fn, isolationLevel = undefined) =>
        db.transaction(
          (tx) =>
            fn({
              tx: fromDrizzle(tx),
              insert: (id, label) => tx.insert(items).values({ id, label }),
              savepoint: (inner) => tx.transaction((nested) => inner(fromDrizzle(nested))),
            }),
          { isolationLevel: isolationLevel ?? 'read committed' },
        ),
      impostors: { 'a Drizzle database that is no transaction': db },
      close: () => pool.end(),
    }
  },
})

describeConformance('a transaction of Drizzle over postgres.js', {
  adapt: fromDrizzle,
  losesCommit: true, // postgres.js 3.4 may queue COMMIT behind such a statement and never send it, most often without prepared statements
  async open(schema) {
    const sql = postgres(url, {
      max: 1,
      prepare: !viaPgBouncer,
      transform: postgres.camel,
      onnotice: () => {},
    })
    const db = drizzlePostgresJs(sql)
    const items = itemsOf(schema)
    return {
      transaction: (fn, isolationLevel = undefined) =>
        db.transaction(
          (tx) =>
            holdWhenLost(
              fn({
                tx: fromDrizzle(tx),
                insert: (id, label) => tx.insert(items).values({ id, label }),
                savepoint: (inner) => tx.transaction((nested) => inner(fromDrizzle(nested))),
              }),
            ),
          { isolationLevel: isolationLevel ?? 'read committed' },
        ),
      impostors: { 'a Drizzle database that is no transaction': db },
      close: () => sql.end({ timeout: 5 }),
    }
  },
})

it('refuses a Drizzle database by its type, and a transaction that has ended at once', async () => {
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  try {
    const db = drizzleNodePg(pool)
    // @ts-expect-error: no transaction
    expect(() => fromDrizzle(db)).toThrow(NotInTransactionError)
    const ended = await db.transaction(async (tx) => tx)
    expect(() => fromDrizzle(ended)).toThrow('it is a Drizzle transaction that has ended')
  } finally {
    await pool.end()
  }
})
