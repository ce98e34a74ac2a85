import { readyForQuery } from '../wire/backend.js'
import type { Request } from '../wire/request.js'
import { type ResponseHandler, WireConnection, type WirePorts } from '../wire/wire-connection.js'
import type { ChosenCut } from './active-faults.js'
import type { ConnectionHandler } from './connection-handler.js'

/** The callbacks of a pass-through handler. */
export interface PassThroughHost {
  readonly tls: 'refuse' | 'pass'
  /** Returns the fault that cuts this request, if any. */
  onRequest(request: Request): ChosenCut | undefined
  /** Cuts the connection. Nothing is passed on afterwards, unless the cut is a black hole. */
  cut(cut: ChosenCut, request: Request): void
}

/** CopyInResponse or CopyBothResponse: a client without it would wait forever to send its data. */
const isCopyStart = (type: string): boolean => type === 'G' || type === 'W'

const isBlackHole = ({ fault }: ChosenCut): boolean => fault.how === 'black-hole'

/** Passes everything on, except the requests that a fault cuts. */
export function passThrough(ports: WirePorts, host: PassThroughHost): ConnectionHandler {
  /** The response to a request whose connection is cut after it. */
  let held: Buffer[] = []
  const release = (): void => {
    for (const bytes of held) ports.toClient(bytes)
    held = []
  }

  /** The number of requests without a complete response, and what to do at zero. */
  let unanswered = 0
  let onAnswered = (): void => {}

  const passing: ResponseHandler = {
    onMessage: ({ bytes }) => ports.toClient(bytes),
    onReady: (status) => {
      ports.toClient(readyForQuery(status))
      unanswered--
      if (unanswered === 0) onAnswered()
    },
  }
  const send = (request: Request): void => {
    // Pipelined requests are sent on without waiting for responses. A request that is not complete ends only after its response.
    const isOpen = !request.isClosed
    unanswered++
    wire.sendRequest(isOpen ? { onMessage: passing.onMessage, onReady: goOn } : passing)
    if (!isOpen) wire.finishRequest()
  }
  const goOn: ResponseHandler['onReady'] = (status) => {
    passing.onReady(status)
    wire.finishRequest()
  }
  /** Cuts after all earlier requests have their response. Otherwise their outcome would be unknown, too. */
  const cutBefore = (cut: ChosenCut, request: Request): void => {
    onAnswered = () => {
      onAnswered = () => {}
      if (!cut.isEnded) {
        host.cut(cut, request)
        if (!isBlackHole(cut)) return
      }
      send(request)
    }
    if (unanswered === 0) onAnswered()
  }
  const holding = (cut: ChosenCut, request: Request): ResponseHandler => ({
    onMessage: ({ type, bytes }) => {
      held.push(bytes)
      // The response to a Flush must arrive, or the client never completes its request.
      // guard: proxy.cut-answer
      if (!request.isClosed || isCopyStart(type)) release()
    },
    onReady: (status) => {
      if (!cut.isEnded) {
        host.cut(cut, request)
        if (!isBlackHole(cut)) return
      }
      release()
      goOn(status)
    },
  })

  const wire = new WireConnection(
    ports,
    {
      onOpen() {},
      onTerminate() {},
      onRequest(request) {
        const cut = host.onRequest(request)
        if (!cut) return void send(request)
        // guard: proxy.cut-before
        if (cut.fault.when === 'before') return void cutBefore(cut, request)
        unanswered++
        wire.sendRequest(holding(cut, request))
      },
    },
    { tls: host.tls },
  )
  return {
    fromClient: (chunk) => wire.fromClient(chunk),
    fromServer: (chunk) => wire.fromServer(chunk),
    // If the server crashed meanwhile, its last message is the response.
    onClose: release,
  }
}
