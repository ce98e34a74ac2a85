import type { WirePorts } from '../wire/wire.js'

/** Who reads what the two sides of a connection say, and decides what is handed on. */
export interface ConnectionOwner {
  fromClient(chunk: Buffer): void
  fromServer(chunk: Buffer): void
  /** One of the two sides has ended or is lost; called once. */
  onClose(): void
}

/** Called for each new connection. `end.destroy()` ends both sides at once. */
export type ConnectOwner = (ports: WirePorts, end: { destroy(): void }) => ConnectionOwner
