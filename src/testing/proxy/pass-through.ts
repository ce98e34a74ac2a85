import { readyForQuery } from '../wire/backend.js'
import type { Request } from '../wire/request.js'
import { type Asked, Wire, type WirePorts } from '../wire/wire.js'
import type { ChosenCut } from './active-faults.js'
import type { ConnectionOwner } from './connection-owner.js'

/** What it needs from around. */
export interface PassThroughHost {
  readonly tls: 'refuse' | 'pass'
  /** A request has come: is it one to be cut? */
  onRequest(request: Request): ChosenCut | undefined
  /** Here and now. After it nothing is handed on, unless the cut is mere silence. */
  cut(cut: ChosenCut, request: Request): void
}

/** The server says that it now reads data, or that both do: a client that does not hear it would wait for ever. */
const isInvitation = (type: string): boolean => type === 'G' || type === 'W'

const isSilence = ({ fault }: ChosenCut): boolean => fault.how === 'black-hole'

/** Hands everything on as it comes, save what is to be cut. */
export function passThrough(ports: WirePorts, host: PassThroughHost): ConnectionOwner {
  /** The answer to a request that is to be cut after it. */
  let held: Buffer[] = []
  const release = (): void => {
    for (const bytes of held) ports.toClient(bytes)
    held = []
  }

  /** Requests whose answers are on their way, and who waits for the last of them. */
  let unanswered = 0
  let onAnswered = (): void => {}

  const passing: Asked = {
    onMessage: ({ bytes }) => ports.toClient(bytes),
    onReady: (status) => {
      ports.toClient(readyForQuery(status))
      unanswered--
      if (unanswered === 0) onAnswered()
    },
  }
  const send = (request: Request): void => {
    // Without waiting for the answer, so that pipelining stays pipelining. One that is not complete has no end before its answer.
    const isOpen = !request.isClosed
    unanswered++
    wire.send(isOpen ? { onMessage: passing.onMessage, onReady: goOn } : passing)
    if (!isOpen) wire.next()
  }
  const goOn: Asked['onReady'] = (status) => {
    passing.onReady(status)
    wire.next()
  }
  /** Once all before it is answered, or the client could not tell what became of that. */
  const cutBefore = (cut: ChosenCut, request: Request): void => {
    onAnswered = () => {
      onAnswered = () => {}
      if (!cut.isEnded) {
        host.cut(cut, request)
        if (!isSilence(cut)) return
      }
      send(request)
    }
    if (unanswered === 0) onAnswered()
  }
  const holding = (cut: ChosenCut, request: Request): Asked => ({
    onMessage: ({ type, bytes }) => {
      held.push(bytes)
      // What is asked for with Flush must arrive, or the client never completes its request.
      if (!request.isClosed || isInvitation(type)) release()
    },
    onReady: (status) => {
      if (!cut.isEnded) {
        host.cut(cut, request)
        if (!isSilence(cut)) return
      }
      release()
      goOn(status)
    },
  })

  const wire = new Wire(
    ports,
    {
      onOpen() {},
      onTerminate() {},
      onRequest(request) {
        const cut = host.onRequest(request)
        if (!cut) return void send(request)
        if (cut.fault.when === 'before') return void cutBefore(cut, request)
        unanswered++
        wire.send(holding(cut, request))
      },
    },
    { tls: host.tls },
  )
  return {
    fromClient: (chunk) => wire.fromClient(chunk),
    fromServer: (chunk) => wire.fromServer(chunk),
    // The server may have died in the midst of it: then its last words are the answer.
    onClose: release,
  }
}
