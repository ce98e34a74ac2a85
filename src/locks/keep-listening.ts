import type { ClientBase, Connection } from 'pg'
import type { Tx } from '../postgres/executor.js'

const heard = new WeakSet<ClientBase>()

/**
 * A `pg` client that the server disconnects while nothing runs on it says so by an event, which ends the process if nobody listens. Since a guard has
 * the server do so to a transaction that stands still, it listens until that has ended: to a client that was given, or one that an adapter shows.
 */
export function keepListening(tx: Tx): void {
  const client = (Reflect.get(tx, 'client') ?? tx) as ClientBase
  const wire: Connection | undefined = Reflect.get(client, 'connection')
  if (typeof wire?.on !== 'function' || heard.has(client)) return
  heard.add(client)
  const ignore = (): void => {}
  const onReady = ({ status }: { status?: string }): void => {
    if (status !== 'I') return
    heard.delete(client)
    client.off('error', ignore)
    wire.off('readyForQuery', onReady)
  }
  client.on('error', ignore)
  wire.on('readyForQuery', onReady)
}
