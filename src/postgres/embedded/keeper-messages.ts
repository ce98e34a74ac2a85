import type { Socket } from 'node:net'
import type { EmbeddedServerFailure } from '../../errors.js'
import type { ServerSettings } from './embedded-options.js'

/** Raised when a keeper of one release could not be understood by a process of another. */
export const PROTOCOL = 1

/** What takes a while at the start of a server. */
export type StartStep = 'copying' | 'initializing' | 'starting' | 'waiting'

/** What a keeper says to those it keeps the server for. */
export type KeeperMessage =
  | {
      readonly type: 'greeting'
      readonly protocol: number
      readonly folder: string
      /** Of the folder, which may have another path by now, or two. */
      readonly identity: string | undefined
      readonly pid: number
    }
  | { readonly type: 'progress'; readonly step: StartStep }
  | { readonly type: 'ready'; readonly url: string }
  /** The answer to one that leaves, so that it knows somebody counts. */
  | { readonly type: 'goodbye' }
  | { readonly type: 'failed'; readonly reason: EmbeddedServerFailure; readonly message: string }

/** What they say to it, once: what they need. */
export interface HoldMessage {
  readonly type: 'hold'
  readonly port?: number | undefined
  readonly settings?: ServerSettings | undefined
}

const LINE_BYTES = 1_000_000

export function sendMessage(socket: Socket, message: KeeperMessage | HoldMessage): void {
  if (socket.writable) socket.write(`${JSON.stringify(message)}\n`)
}

/** Calls `receive` for each message; what is not one ends the connection. */
export function onMessage(socket: Socket, receive: (message: KeeperMessage | HoldMessage) => void): void {
  let text = ''
  socket.setEncoding('utf8')
  socket.on('data', (chunk: string) => {
    text += chunk
    const lines = text.split('\n')
    text = lines.pop() ?? ''
    try {
      if (text.length > LINE_BYTES) throw new Error('endless line')
      for (const line of lines) receive(JSON.parse(line))
    } catch {
      socket.destroy()
    }
  })
}
