import knexFactory, { type Knex } from 'knex'
import { expect, it } from 'vitest'
import { describeConformance } from '../../../test/conformance/describe-conformance.js'
import { url } from '../../../test/database.js'
import { NotInTransactionError } from '../../errors.js'
import { fromKnex } from './from-knex.js'

const openKnex = (): Knex =>
  knexFactory({
    client: 'pg',
    connection: url,
    pool: { min: 0, max: 1 },
    acquireConnectionTimeout: 5000,
    wrapIdentifier: (value, wrap) => wrap(value.toLowerCase()),
    postProcessResponse: () => 'changed beyond recognition',
    log: { warn() {} }, // of the connections that the suite ends
  })

describeConformance('a transaction of Knex', {
  adapt: fromKnex,
  async open(schema) {
    const knex = openKnex()
    return {
      transaction: (fn, isolationLevel = undefined) =>
        knex.transaction(
          (trx) =>
            fn({
              tx: fromKnex(trx),
              insert: (id, label) => trx('ITEMS').withSchema(schema).insert({ id, label }).then(),
              savepoint: (inner) => trx.transaction((nested) => inner(fromKnex(nested))),
            }),
          { isolationLevel },
        ),
      impostors: { 'a Knex instance that is no transaction': knex },
      close: () => knex.destroy(),
    }
  },
})

it('joins a transaction of Knex without a callback, and refuses it once it has ended', async () => {
  const knex = openKnex()
  try {
    const trx = await knex.transaction()
    expect((await fromKnex(trx).query('select 1 as n')).rows).toEqual([{ n: 1 }])
    await trx.commit()
    expect(() => fromKnex(trx)).toThrow('it is a Knex transaction that has ended')
    // @ts-expect-error: no transaction
    expect(() => fromKnex(knex)).toThrow(NotInTransactionError)
  } finally {
    await knex.destroy()
  }
})
