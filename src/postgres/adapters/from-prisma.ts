import { NotInTransactionError } from '../../errors.js'
import { hasMethods, nameGiven } from '../../options/name-given.js'
import type { Row, Tx } from '../executor.js'
import { adaptTransaction } from '../joined-transaction.js'

/** The client of an interactive transaction of Prisma. */
export interface PrismaTransaction {
  $queryRawUnsafe(text: string, ...values: unknown[]): PromiseLike<unknown>
  /** Only a `PrismaClient` has this method. */
  readonly $connect?: never
}

const advice = 'Pass the `tx` of prisma.$transaction(async (tx) => …).'

/**
 * Joins an open interactive transaction of Prisma.
 *
 * Prisma ends a transaction after 5 seconds, even while a statement runs. Raise `timeout` if yours can take longer. Raw
 * queries of Prisma do not return how many rows were changed, so `rowCount` is known only with `returning`. They cannot
 * read columns of the types void and record: cast those to text.
 *
 * @example
 * await prisma.$transaction(
 *   async (tx) => {
 *     await tx.order.create({ data: { id } })
 *     await fromPrisma(tx).query('select pg_notify($1, $2)::text', ['orders', id])
 *   },
 *   { timeout: 30_000 },
 * )
 */
export function fromPrisma(tx: PrismaTransaction): Tx {
  refuseOther(tx)
  return adaptTransaction(async (text, values) => {
    try {
      const rows = (await tx.$queryRawUnsafe(text, ...values)) as Row[]
      return { rows, rowCount: rows.length > 0 ? rows.length : null }
    } catch (error) {
      throw nameEnded(error)
    }
  })
}

function refuseOther(given: unknown): void {
  const isPrisma = hasMethods(given, '$queryRawUnsafe')
  // The only public difference: a transaction cannot open a connection.
  if (isPrisma && !hasMethods(given, '$connect')) return
  throw new NotInTransactionError(isPrisma ? 'a PrismaClient' : nameGiven(given), advice)
}

/** P2028: the transaction was committed, rolled back, or timed out. */
function nameEnded(error: unknown): unknown {
  if (!(error instanceof Error && Reflect.get(error, 'code') === 'P2028')) return error
  const given = 'a Prisma transaction that has ended'
  const advice = 'Await all its work before its function returns, and raise its `timeout` if that takes long.'
  return new NotInTransactionError(given, advice, { cause: error })
}
