import type { WirePorts } from '../wire/wire-connection.js'

/** Reads the bytes of both sides of a connection, and decides which are passed on. */
export interface ConnectionHandler {
  fromClient(chunk: Buffer): void
  fromServer(chunk: Buffer): void
  /** Called once, when the first side has ended or is lost. */
  onClose(): void
}

/** Called for each new connection. `end.destroy()` ends both sides at once. */
export type CreateConnectionHandler = (ports: WirePorts, end: { destroy(): void }) => ConnectionHandler
