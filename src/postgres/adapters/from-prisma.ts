import { NotInTransactionError } from '../../errors.js'
import type { Row, Tx } from '../executor.js'
import { hasMethods, nameGiven } from '../name-given.js'
import { adaptSession } from '../session.js'

/** The client that an interactive transaction of Prisma hands over. */
export interface PrismaTransaction {
  $queryRawUnsafe(text: string, ...values: unknown[]): PromiseLike<unknown>
  /** A client that has this is the whole `PrismaClient`. */
  readonly $connect?: never
}

const advice = 'Pass the `tx` of prisma.$transaction(async (tx) => …).'

/**
 * Joins an open interactive transaction of Prisma.
 *
 * Prisma ends a transaction after 5 seconds, work in progress or not: raise `timeout` if yours can take longer.
 * Its raw queries do not say how many rows a statement changed, so `rowCount` is known only with `returning`; and
 * they cannot read columns of the types void and record: cast those to text.
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
  return adaptSession(async (text, values) => {
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
  // The one sign in public: a transaction has no connection of its own to open.
  if (isPrisma && !hasMethods(given, '$connect')) return
  throw new NotInTransactionError(isPrisma ? 'a PrismaClient' : nameGiven(given), advice)
}

/** P2028: committed, rolled back, or over its time. */
function nameEnded(error: unknown): unknown {
  if (!(error instanceof Error && Reflect.get(error, 'code') === 'P2028')) return error
  const given = 'a Prisma transaction that has ended'
  const advice = 'Await all its work before its function returns, and raise its `timeout` if that takes long.'
  return new NotInTransactionError(given, advice, { cause: error })
}
