import type { ClientBase, Connection } from 'pg'

export interface ControlWatch {
  /** How many statements have begun or ended a transaction since the watch began. */
  readonly seen: number
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
  const watch = { seen: 0, stop: () => void wire?.off('commandComplete', onComplete) }
  function onComplete({ text }: { text: string }): void {
    // ROLLBACK TO SAVEPOINT answers with the same word as ROLLBACK.
    if (ends.has(text) || (text === 'ROLLBACK' && !isPartial(client))) watch.seen++
  }
  wire?.on('commandComplete', onComplete)
  return watch
}

function isPartial(client: ClientBase): boolean {
  const active: { text?: unknown } | null | undefined = Reflect.get(client, '_getActiveQuery')?.call(client)
  return typeof active?.text === 'string' && /\brollback\s+(?:work\s+|transaction\s+)?to\b/i.test(active.text)
}
