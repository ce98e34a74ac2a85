import { ConnectionLostError } from '../../errors.js'
import type { PostgresJsTransaction } from './postgres-js-transaction.js'

/** An internal object of postgres.js. `reserved` is a function of the transaction that holds the connection. */
interface Connection {
  readonly reserved?: unknown
  /** Called once when the connection breaks, and then set to null. */
  readonly onclose?: unknown
}

/**
 * Resolves to a check whether this transaction is still open, before its first statement is sent.
 *
 * After a transaction has ended, postgres.js still sends its statements over the connection: outside of any
 * transaction, or inside another one. If the connection is closed, the process crashes. The public interface does not
 * show the end, so this function uses the hook by which `sql.begin` learns its connection. postgres.js sends the empty
 * statement with the hook in one packet with the first real one. Without the hook, each transaction counts as open.
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
