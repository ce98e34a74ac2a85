import type { Socket } from 'node:net'
import type { EmbeddedServerFailure } from '../../errors.js'
import type { ServerSettings } from './embedded-options.js'

/** The version of the messages. Raise it when supervisors and processes of two releases would not understand each other. */
export const PROTOCOL = 1

/** The steps of a start that take a while. */
export type StartStep = 'copying' | 'initializing' | 'starting' | 'waiting'

/** The messages of a supervisor to its holders. */
export type SupervisorMessage =
  | {
      readonly type: 'greeting'
      readonly protocol: number
      readonly folder: string
      /** The identity of the folder, which may have another path or several paths by now. */
      readonly identity: string | undefined
      readonly pid: number
    }
  | { readonly type: 'progress'; readonly step: StartStep }
  | { readonly type: 'ready'; readonly url: string }
  /** The answer to a holder that leaves. The answer shows that the supervisor is alive. */
  | { readonly type: 'goodbye' }
  | { readonly type: 'failed'; readonly reason: EmbeddedServerFailure; readonly message: string }

/** The only message of a holder: what it needs of the server. */
export interface HoldMessage {
  readonly type: 'hold'
  readonly port?: number | undefined
  readonly settings?: ServerSettings | undefined
}

const LINE_BYTES = 1_000_000

export function sendMessage(socket: Socket, message: SupervisorMessage | HoldMessage): void {
  if (socket.writable) socket.write(`${JSON.stringify(message)}\n`)
}

/** Calls `receive` for each message. Anything else ends the connection. */
export function onMessage(socket: Socket, receive: (message: SupervisorMessage | HoldMessage) => void): void {
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
