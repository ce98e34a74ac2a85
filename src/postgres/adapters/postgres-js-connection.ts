import { ConnectionLostError } from '../../errors.js'
import type { PostgresJsTransaction } from './postgres-js-transaction.js'

/** Of the inside of postgres.js: `reserved` is a function of the transaction that holds the connection. */
interface Connection {
  readonly reserved?: unknown
  /** Called once when the connection breaks, and then set to null. */
  readonly onclose?: unknown
}

/**
 * Resolves to a check whether this transaction is still open, before its first statement is sent.
 *
 * postgres.js goes on sending the statements of an ended transaction through its connection, outside of any
 * transaction or inside another's, and crashes the process if the connection is closed. Its public face does not
 * tell, so this uses the hook by which `sql.begin` itself learns its connection. The empty statement that carries
 * the hook leaves in one packet with the first real one. Without the hook every transaction counts as open.
 */
export function watchConnection(sql: Pick<PostgresJsTransaction, 'unsafe'>): Promise<() => boolean> {
  return new Promise((resolve) => {
    const onexecute = (connection: Connection) => {
      const { reserved } = connection
      resolve(() => {
        if (connection.onclose === null) {
          throw new ConnectionLostError('The connection of this postgres.js transaction is lost.')
        }
        return Boolean(reserved) && connection.reserved === reserved
      })
      return true // for postgres.js: the connection takes more statements
    }
    const unknown = () => resolve(() => true)
    sql.unsafe('', [], { onexecute }).then(unknown, unknown)
  })
}
