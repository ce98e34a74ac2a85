import { DataSource, EntitySchema } from 'typeorm'
import { expect, it } from 'vitest'
import { describeConformance } from '../../../test/conformance/describe-conformance.js'
import { url } from '../../../test/database.js'
import { NotInTransactionError } from '../../errors.js'
import { fromTypeORM } from './from-typeorm.js'

interface Item {
  id: string
  label: string
}

async function openDataSource(schema = 'public') {
  const Items = new EntitySchema<Item>({
    name: 'Item',
    tableName: 'items',
    columns: { id: { type: 'text', primary: true }, label: { type: 'text' } },
  })
  const dataSource = new DataSource({
    type: 'postgres',
    url,
    schema,
    entities: [Items],
    poolSize: 1,
    installExtensions: false,
  })
  return { dataSource: await dataSource.initialize(), Items }
}

describeConformance('a transaction of TypeORM', {
  adapt: fromTypeORM,
  async open(schema) {
    const { dataSource, Items } = await openDataSource(schema)
    const { manager } = dataSource
    return {
      transaction: (fn, isolation = undefined) =>
        dataSource.transaction(isolation ? 'REPEATABLE READ' : 'READ COMMITTED', (manager) =>
          fn({
            tx: fromTypeORM(manager),
            insert: (id, label) => manager.insert(Items, { id, label }),
            savepoint: (inner) => manager.transaction((nested) => inner(fromTypeORM(nested))),
          }),
        ),
      impostors: {
        'a TypeORM DataSource': dataSource,
        'a TypeORM EntityManager outside of a transaction': manager,
      },
      close: () => dataSource.destroy(),
    }
  },
})

describeConformance('a query runner of TypeORM', {
  adapt: fromTypeORM,
  async open(schema) {
    const { dataSource, Items } = await openDataSource(schema)
    const idle = dataSource.createQueryRunner()
    let runner = idle
    return {
      async transaction(fn, isolation) {
        // Not before: an ended transaction whose runner still holds its connection is the one to refuse.
        await runner.release()
        runner = dataSource.createQueryRunner()
        await runner.startTransaction(isolation ? 'REPEATABLE READ' : 'READ COMMITTED')
        try {
          await fn({
            tx: fromTypeORM(runner),
            insert: (id, label) => runner.manager.insert(Items, { id, label }),
            savepoint: (inner) => runner.manager.transaction((nested) => inner(fromTypeORM(nested))),
          })
          await runner.commitTransaction()
        } catch (error) {
          await runner.rollbackTransaction().catch(() => {})
          throw error
        }
      },
      impostors: { 'a TypeORM query runner that has no open transaction': idle },
      async close() {
        await runner.release()
        await dataSource.destroy()
      },
    }
  },
})

it('refuses a DataSource of TypeORM by its type', async () => {
  const { dataSource } = await openDataSource()
  try {
    // @ts-expect-error: no transaction
    expect(() => fromTypeORM(dataSource)).toThrow(NotInTransactionError)
  } finally {
    await dataSource.destroy()
  }
})
