import type { ClientBase, Connection } from 'pg'
import type { Tx } from '../postgres/executor.js'
import { isSession } from '../postgres/session.js'

const heard = new WeakSet<ClientBase>()

/**
 * A `pg` client that the server disconnects while nothing runs on it says so by an event, which ends the process if nobody listens. Since a guard has
 * the server do so to a transaction that stands still, it listens until that has ended. The clients of `dibs.transaction` have a listener of their own.
 */
export function keepListening(tx: Tx): void {
  if (isSession(tx)) return
  const client = tx as unknown as ClientBase
  const wire: Connection | undefined = Reflect.get(client, 'connection')
  if (!wire || heard.has(client)) return
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
