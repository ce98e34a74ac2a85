import type { ClientBase, Connection } from 'pg'
import type { Tx } from '../postgres/executor.js'

const clients = new WeakSet<ClientBase>()

/**
 * Listens to the errors of the transaction's `pg` client until the transaction has ended. A guard makes the server disconnect a transaction that stays idle.
 * The client emits that as an error event, which would end the process if nobody listened.
 */
export function keepListening(tx: Tx): void {
  const client = (Reflect.get(tx, 'client') ?? tx) as ClientBase
  const wire: Connection | undefined = Reflect.get(client, 'connection')
  if (typeof wire?.on !== 'function' || clients.has(client)) return
  clients.add(client)
  const ignore = (): void => {}
  const onReady = ({ status }: { status?: string }): void => {
    if (status !== 'I') return
    clients.delete(client)
    client.off('error', ignore)
    wire.off('readyForQuery', onReady)
  }
  client.on('error', ignore)
  wire.on('readyForQuery', onReady)
}
