import { PrismaPg } from '@prisma/adapter-pg'
import { describe, expect, it } from 'vitest'
import { describeConformance } from '../../../test/conformance/describe-conformance.js'
import { until, url } from '../../../test/database.js'
import { PrismaClient } from '../../../test/prisma/generated/client.js'
import { NotInTransactionError } from '../../errors.js'
import { fromPrisma } from './from-prisma.js'

const openPrisma = (schema = 'public') =>
  new PrismaClient({ adapter: new PrismaPg({ connectionString: url, max: 1 }, { schema }) })

describeConformance('a transaction of Prisma', {
  adapt: fromPrisma,
  hidesCount: true,
  async open(schema) {
    const prisma = openPrisma(schema)
    return {
      transaction: (fn, isolation = undefined) =>
        prisma.$transaction(
          (tx) =>
            fn({
              tx: fromPrisma(tx),
              insert: (id, label) => tx.item.create({ data: { id, label } }),
              savepoint: (inner) => tx.$transaction((nested) => inner(fromPrisma(nested))),
            }),
          {
            isolationLevel: isolation ? 'RepeatableRead' : 'ReadCommitted',
            maxWait: 15_000,
            timeout: 15_000,
          },
        ),
      impostors: { 'a PrismaClient': prisma },
      close: () => prisma.$disconnect(),
    }
  },
})

describe('fromPrisma', () => {
  it('refuses a PrismaClient by its type, also an extended one', async () => {
    const prisma = openPrisma()
    const extended = prisma.$extends({ name: 'any' })
    // @ts-expect-error: no transaction
    expect(() => fromPrisma(prisma)).toThrow(NotInTransactionError)
    // @ts-expect-error: no transaction
    expect(() => fromPrisma(extended)).toThrow(NotInTransactionError)
    await extended.$transaction(async (tx) => {
      expect((await fromPrisma(tx).query('select 1 as n')).rows).toEqual([{ n: 1 }])
    })
    await prisma.$disconnect()
  })

  it('says so when a transaction ran out of its time', async () => {
    const prisma = openPrisma()
    const late = prisma.$transaction(
      async (tx) => {
        const joined = fromPrisma(tx)
        throw await until(
          () =>
            joined.query('select 1 as n').then(
              () => undefined,
              (error) => error,
            ),
          'the end',
        )
      },
      { timeout: 100 },
    )
    await expect(late).rejects.toBeInstanceOf(NotInTransactionError)
    await prisma.$disconnect()
  })
})
