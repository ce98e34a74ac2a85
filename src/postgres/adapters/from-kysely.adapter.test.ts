import { CamelCasePlugin, Kysely, PostgresDialect, type Transaction } from 'kysely'
import pg from 'pg'
import { describe, expect, it } from 'vitest'
import { describeConformance } from '../../../test/conformance/describe-conformance.js'
import type { OpenTransaction } from '../../../test/conformance/harness.js'
import { url } from '../../../test/database.js'
import { NotInTransactionError } from '../../errors.js'
import { fromKysely } from './from-kysely.js'

interface Database {
  items: { id: string; label: string }
}

function openKysely(): Kysely<Database> {
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  pool.on('connect', (client) => client.on('error', () => {}))
  return new Kysely<Database>({ dialect: new PostgresDialect({ pool }), plugins: [new CamelCasePlugin()] })
}

const open = (trx: Transaction<Database>, savepoint: OpenTransaction['savepoint']): OpenTransaction => ({
  tx: fromKysely(trx),
  insert: (id, label) => trx.insertInto('items').values({ id, label }).execute(),
  savepoint,
})

/** A callback's transaction has no savepoints, but our `query` can make one. */
describeConformance('a transaction of Kysely', {
  adapt: fromKysely,
  async open(schema) {
    const db = openKysely()
    return {
      transaction: (fn, isolation = 'read committed' as never) =>
        db
          .transaction()
          .setIsolationLevel(isolation)
          .execute((trx) => {
            const tx = fromKysely(trx)
            return fn(
              open(trx.withSchema(schema), async (inner) => {
                await tx.query('savepoint s')
                try {
                  await inner(tx)
                } catch (error) {
                  await tx.query('rollback to savepoint s')
                  throw error
                }
              }),
            )
          }),
      impostors: { 'a Kysely instance that is no transaction': db },
      close: () => db.destroy(),
    }
  },
})

describeConformance('a controlled transaction of Kysely', {
  adapt: fromKysely,
  async open(schema) {
    const db = openKysely()
    return {
      async transaction(fn, isolation) {
        const trx = await db
          .startTransaction()
          .setIsolationLevel(isolation ?? 'read committed')
          .execute()
        try {
          await fn(
            open(trx.withSchema(schema), async (inner) => {
              const saved = await trx.savepoint('s').execute()
              try {
                await inner(fromKysely(saved))
                await saved.releaseSavepoint('s').execute()
              } catch (error) {
                await saved.rollbackToSavepoint('s').execute()
                throw error
              }
            }),
          )
          await trx.commit().execute()
        } catch (error) {
          await trx
            .rollback()
            .execute()
            .catch(() => {})
          throw error
        }
      },
      impostors: { 'a Kysely instance that is no transaction': db },
      close: () => db.destroy(),
    }
  },
})

describe('fromKysely', () => {
  it('refuses at once a transaction that has ended, and by its type a plain instance', async () => {
    const db = openKysely()
    try {
      const committed = await db.startTransaction().execute()
      await committed.commit().execute()
      const rolledBack = await db.startTransaction().execute()
      await rolledBack.rollback().execute()
      const left = await db.transaction().execute(async (trx) => trx)
      for (const ended of [committed, rolledBack, left]) {
        expect(() => fromKysely(ended)).toThrow('it is a Kysely transaction that has ended')
      }
      // @ts-expect-error: no transaction
      expect(() => fromKysely(db)).toThrow(NotInTransactionError)
    } finally {
      await db.destroy()
    }
  })
})
