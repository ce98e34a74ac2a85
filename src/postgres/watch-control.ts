import type { ClientBase, Connection } from 'pg'
import { activeQuery } from './pg-client-state.js'
import { countRollbacksToSavepoint } from './transaction-control.js'

export interface ControlWatch {
  /** How many statements have begun or ended a transaction since the watch began. */
  readonly transactionCommands: number
  /** How many rollbacks to a savepoint have run. */
  readonly savepointRollbacks: number
  stop(): void
}

const controlCommands = new Set(['COMMIT', 'BEGIN', 'START TRANSACTION', 'PREPARE TRANSACTION'])

/**
 * Watches on the wire for statements that begin or end a transaction. Their text is not enough: it may follow a comment
 * or stand in the middle of a string of statements, and libraries send some. The status of the client is not enough
 * either: COMMIT AND CHAIN does not change it.
 */
export function watchControl(client: ClientBase): ControlWatch {
  const wire: Connection | undefined = Reflect.get(client, 'connection')
  const watch = {
    transactionCommands: 0,
    savepointRollbacks: 0,
    stop: () => void wire?.off('commandComplete', onComplete),
  }
  /** For each query, how many of its ROLLBACK TO SAVEPOINT have no answer yet. */
  const pendingRollbacks = new WeakMap<object, number>()

  function onComplete({ text }: { text: string }): void {
    if (text === 'ROLLBACK' && isRollbackToSavepoint()) watch.savepointRollbacks++
    else if (text === 'ROLLBACK' || controlCommands.has(text)) watch.transactionCommands++
  }

  /** ROLLBACK TO SAVEPOINT answers with the same word as ROLLBACK. */
  function isRollbackToSavepoint(): boolean {
    const query = activeQuery(client)
    if (typeof query?.text !== 'string') return false
    const left = pendingRollbacks.get(query) ?? countRollbacksToSavepoint(query.text)
    pendingRollbacks.set(query, left - 1)
    return left > 0
  }

  wire?.on('commandComplete', onComplete)
  return watch
}
