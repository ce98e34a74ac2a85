import type { ClientBase, Connection } from 'pg'
import { activeQuery } from './pg-client-state.js'

export interface ControlWatch {
  /** How many statements have begun or ended a transaction since the watch began. */
  readonly seen: number
  /** How many savepoints were rolled back to. */
  readonly undone: number
  stop(): void
}

const ends = new Set(['COMMIT', 'BEGIN', 'START TRANSACTION', 'PREPARE TRANSACTION'])

/**
 * Watches on the wire for what begins or ends a transaction. The text of a statement does not tell: it may stand
 * behind a comment, in the middle of a string of statements, or be sent by a library. The status does not either:
 * after COMMIT AND CHAIN it is the same as before.
 */
export function watchControl(client: ClientBase): ControlWatch {
  const wire: Connection | undefined = Reflect.get(client, 'connection')
  const watch = { seen: 0, undone: 0, stop: () => void wire?.off('commandComplete', onComplete) }
  /** How many ROLLBACK TO SAVEPOINT of a query are still to be answered. */
  const partial = new WeakMap<object, number>()

  function onComplete({ text }: { text: string }): void {
    if (text === 'ROLLBACK' && isPartial()) watch.undone++
    else if (text === 'ROLLBACK' || ends.has(text)) watch.seen++
  }

  /** ROLLBACK TO SAVEPOINT answers with the same word as ROLLBACK. */
  function isPartial(): boolean {
    const query = activeQuery(client)
    if (typeof query?.text !== 'string') return false
    const left = partial.get(query) ?? countPartial(query.text)
    partial.set(query, left - 1)
    return left > 0
  }

  wire?.on('commandComplete', onComplete)
  return watch
}

function countPartial(text: string): number {
  const bare = text.replace(/\/\*[\s\S]*?\*\/|--.*$|'(?:[^']|'')*'|\$(\w*)\$[\s\S]*?\$\1\$/gm, ' ')
  return bare.split(';').filter((one) => /^\s*rollback\s+(?:(?:work|transaction)\s+)?to\b/i.test(one)).length
}
