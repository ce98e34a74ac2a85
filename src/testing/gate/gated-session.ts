import {
  commandComplete,
  errorResponse,
  readFields,
  readyForQuery,
  type TransactionStatus,
} from '../wire/backend.js'
import { query } from '../wire/frontend.js'
import type { Message } from '../wire/message-reader.js'
import type { Request } from '../wire/request.js'
import { type ResponseHandler, WireConnection } from '../wire/wire-connection.js'
import { HeldResponse } from './held-response.js'
import { type Plan, type PlannedStep, valuesOf } from './plan.js'
import { PoolOwnerSetup } from './pool-owner-setup.js'
import { resetSession } from './reset-session.js'
import { ResultReader, type StepResult } from './result.js'
import type { InjectedError, SessionOptions, SessionState } from './session-options.js'
import { shorterOf, timeoutIn } from './timeout-in.js'
import { TransactionStart } from './transaction-start.js'

export type GatedSessionOptions = SessionOptions<GatedSession>

/** Listens to the changes of a session's state. */
export type SessionObserver = GatedSessionOptions['observer']

/** A notice with this code is a yield point of a function. Its message is the name of the point. */
export const POINT_CODE = 'DIBPT'

/** How long a client on the loopback may take to send its next request before it counts as busy with something else. */
const NEXT_REQUEST_MS = 3

const BEGINS = /^\s*(?:begin|start\s+transaction)\b/i
const CHAINS = /\band\s+chain\b/i

/** Fails, so that the server refuses the rest of the transaction. */
const FAIL_TRANSACTION = `do $dibs$ begin raise exception 'injected'; end $dibs$`

/** SQLSTATEs of "cannot run inside a transaction block" and of a COMMIT inside a procedure that may not commit. */
const REFUSES_BLOCK: ReadonlySet<string | undefined> = new Set(['25001', '2D000'])

const ignoreResponse: ResponseHandler = { onMessage: () => {}, onReady: () => {} }

/** A client's connection to the server. Each step of a request waits at this gate until `release()`. */
export class GatedSession {
  state: SessionState = 'opening'
  /** The yield point that the running step has reached last. */
  point: string | undefined
  /** The result of the last step. */
  result: StepResult | undefined
  /** The last statement that committed by itself. The gate cannot see what such a statement writes. */
  selfCommitted: string | undefined
  /** The shortest `lock_timeout` or `statement_timeout` that the client has set. A wait ends by itself after this time. */
  timeoutMs: number | undefined
  /** The client has changed its role. The other role may have fewer rights. */
  hasOtherRole = false
  /** The statements since the last step that are no steps. A report shows them with the next step. */
  precedingTexts: string[] = []
  /** The steps of the open transaction and their results, in order. */
  transaction: string[] = []
  /** The response to the current request stays here until `deliverResponse()`. */
  holdsAnswer = false
  readonly #options: GatedSessionOptions
  readonly #wire: WireConnection
  readonly #transactionStart = new TransactionStart()
  readonly #ownerSetup = new PoolOwnerSetup()
  /** The messages that the client gets after the last step. */
  readonly #held = new HeldResponse()
  #prepared: Promise<void> | undefined
  #deliveredAt = 0
  #hasSavepoint = false
  /** Statements that were prepared by SQL stay in the session. */
  #hasPreparedBySql = false
  #request: Request | undefined
  #plan: Plan | undefined
  #nextStep = 0

  constructor(options: GatedSessionOptions) {
    this.#options = options
    this.#wire = new WireConnection(
      options.ports,
      {
        onOpen: () => {
          this.#prepared = options.prepare?.(this)
          if (!this.#prepared) this.#become('idle')
          else
            void this.#prepared
              .then(() => this.state === 'opening' && this.#become('idle'))
              .catch(() => this.destroy())
        },
        // Planning fails only when the explorer's own connection is lost. The exploration ends then.
        onRequest: (request) => void this.#onRequest(request).catch(() => this.destroy()),
        onTerminate: () => this.#become('closing'),
      },
      { settings: options.settings },
    )
  }

  /** True while a client that has just got a response may be about to send its next request. */
  get isJustAnswered(): boolean {
    return (
      this.#options.isRemote === true &&
      this.state === 'idle' &&
      performance.now() - this.#deliveredAt < NEXT_REQUEST_MS
    )
  }

  get pid(): number {
    return this.#wire.pid
  }

  /** Resolves when the session is ready for its first request. */
  get isPrepared(): Promise<void> | undefined {
    return this.#prepared
  }

  /** The status of the transaction as the client sees it. */
  get status(): TransactionStatus {
    return this.#transactionStart.isDeferred ? 'T' : this.#wire.status
  }

  /** True while an open transaction may hold locks. An error frees its locks, unless a savepoint keeps some. */
  get holdsLocks(): boolean {
    if (this.#transactionStart.isWithoutStep) return false
    return this.#wire.status === 'T' || (this.#wire.status === 'E' && this.#hasSavepoint)
  }

  /** The step that waits or runs. */
  get step(): PlannedStep | undefined {
    return this.#plan?.steps[this.#nextStep]
  }

  /** True if the server has received no step of the current request. */
  get isFirstStep(): boolean {
    return this.#nextStep === 0
  }

  /** The request is an autocommit statement that may write. Its COMMIT is a step of its own. */
  get isSplit(): boolean {
    return this.#plan?.isSplit === true
  }

  /** The statements that the pool's owner has run on the connection. */
  get ownerTexts(): readonly string[] {
    return this.#ownerSetup.statements
  }

  /** The current request. Some drivers send parameters only after the server has described the statement. */
  get request(): Request | undefined {
    return this.#request
  }

  /** The parameters of the step that waits or runs. */
  get values(): readonly (string | null)[] {
    return valuesOf(this.step, this.#request)
  }

  fromClient(chunk: Buffer): void {
    this.#wire.fromClient(chunk)
  }

  fromServer(chunk: Buffer): void {
    this.#wire.fromServer(chunk)
  }

  /** Called when either side has closed the connection. */
  onClose(): void {
    if (this.state !== 'closed') this.#become('closing')
  }

  /** Called when the server process of the session has ended. */
  onGone(): void {
    this.#become('closed')
  }

  destroy(): void {
    this.#options.destroy()
  }

  abandon(): void {
    this.#options.abandon()
  }

  /** Lets the next step run. The statements of `prelude` run before it, in the same message and unseen by the client. */
  release(prelude: readonly string[] = []): void {
    const step = this.step
    if (!step) throw new Error('no step waits here')
    this.point = undefined
    this.result = undefined
    this.#become('running')
    // The prelude runs before BEGIN: a setting that takes a snapshot would take the transaction's snapshot too early.
    const opensOwn = this.isSplit && this.#nextStep === 0
    const [before = '', ...begin] = this.#transactionStart.take(this.#wire.status, opensOwn)
    for (const sql of [before, ...(this.status === 'E' ? [] : prelude), ...begin])
      if (sql !== '') this.#sendIgnoringResponse(sql)
    this.transaction.push(`${step.text} ${JSON.stringify(this.values)}`)
    this.#send(step)
  }

  /** Passes the held response to the client. */
  deliverResponse(): void {
    this.holdsAnswer = false
    this.#deliver(this.#wire.status)
  }

  /**
   * Fails the request that waits, and its transaction, with an error that the server could have raised. The server gets the
   * request in a failed transaction, so its response has the form that the client's protocol (simple or extended) needs.
   */
  refuse(error: InjectedError): void {
    const step = this.step
    if (!step) throw new Error('no step waits here')
    const isAlone = this.status === 'I'
    this.#become('running')
    this.result = { tag: '', rows: [], rowCount: 0, error }
    if (isAlone) this.#sendIgnoringResponse('begin')
    else this.#sendDeferredBegin()
    this.#transactionStart.forgetStatements()
    this.#sendIgnoringResponse(FAIL_TRANSACTION)
    let hasError = false
    this.#wire.sendRequest({
      onMessage: (message) => {
        // The server responds to COMMIT of a failed transaction with a tag, not with an error.
        if (hasError || (message.type !== 'E' && message.type !== 'C')) return
        hasError = true
        this.#hold({ type: 'E', bytes: errorResponse({ severity: 'ERROR', ...error }) })
      },
      onReady: (status) => {
        // A BEGIN in the request has opened a transaction. A failed COMMIT AND CHAIN has opened none.
        const staysOpen = isAlone
          ? BEGINS.test(this.#request?.text ?? '')
          : !CHAINS.test(this.#request?.text ?? '')
        if (staysOpen) return void this.#deliver(status)
        this.#wire.send(query('rollback'), { ...ignoreResponse, onReady: (after) => this.#deliver(after) })
      },
    })
  }

  /** Ends the connection: as the server does, with a last message, or as the network does, without one. */
  cut(error: InjectedError, sendsError: boolean): void {
    this.result = { tag: '', rows: [], rowCount: 0, error }
    if (sendsError) this.#options.ports.toClient(errorResponse({ severity: 'FATAL', ...error }))
    // The message must reach the client before the end.
    setImmediate(() => this.destroy())
  }

  /** Forgets what an earlier run has left. */
  begin(): void {
    this.holdsAnswer = false
    this.precedingTexts = []
    this.timeoutMs = undefined
    this.hasOtherRole = false
    this.transaction = []
    this.point = undefined
    this.result = undefined
  }

  /** Brings the session back to its first state, or ends it if that fails. */
  async clean(): Promise<void> {
    this.#transactionStart.clear()
    if (this.#wire.status !== 'I') await this.execute('rollback')
    const { error } = await this.execute(resetSession(this.#hasPreparedBySql))
    if (error) return this.abandon()
    for (const sql of this.#ownerSetup.statements) await this.execute(sql)
  }

  /** Called for a new client. Requests belong to the pool's owner until `handOver()`. */
  takeOver(): void {
    this.#ownerSetup.begin()
  }

  /** Called when the pool hands out the client. `queued` requests of the pool's owner are still to come. */
  handOver(queued: number): void {
    this.#ownerSetup.end(queued)
    this.#options.onHandOver?.(this)
  }

  /** Runs statements of the explorer on an idle session. */
  execute(sql: string): Promise<StepResult> {
    return new Promise((resolve) => {
      const reader = new ResultReader()
      this.#wire.send(query(sql), {
        onMessage: (message) => reader.read(message),
        onReady: () => resolve(reader.result),
      })
    })
  }

  #sendDeferredBegin(): void {
    const begin = this.#transactionStart.takeDeferred()
    if (begin !== undefined) this.#sendIgnoringResponse(begin)
  }

  #become(state: SessionState): void {
    this.state = state
    this.#options.observer.onChange(this)
  }

  #sendIgnoringResponse(sql: string): void {
    this.#wire.send(query(sql), ignoreResponse)
  }

  async #onRequest(request: Request): Promise<void> {
    this.#request = request
    this.hasOtherRole ||= /\bset\s+(?:local\s+|session\s+)?(?:role|session\s+authorization)\b/i.test(
      request.text,
    )
    this.timeoutMs = shorterOf(this.timeoutMs, timeoutIn(request.text))
    this.#held.clear()
    this.#nextStep = 0
    this.state = 'planning'
    // Decided before the await below: the pool may hand out the client meanwhile.
    const isOwners = this.#ownerSetup.takeNext()
    if (this.#prepared) await this.#prepared
    this.#prepared = undefined
    if (isOwners) return this.#passOwnerRequest(request)
    this.#hasPreparedBySql ||= /^\s*prepare\s+(?!transaction)/i.test(request.text)
    const plan = this.#options.planner.plan(request, {
      status: this.status,
      hasSavepoint: this.#hasSavepoint,
    })
    // An await without need would let a request that is no step arrive out of order.
    this.#plan = plan instanceof Promise ? await plan : plan
    if (this.#plan.steps.length > 0) return this.#become('gated')
    this.#become('passing')
    this.precedingTexts.push(request.text)
    if (this.#plan.beginsAlone && this.status === 'I') return this.#deferBegin(request.text)
    this.#transactionStart.note(request.text, this.#wire.status, this.#plan)
    this.#sendDeferredBegin()
    this.#pass()
  }

  /** Sends a request of the pool's owner at once. `clean()` sends the request again after each schedule. */
  #passOwnerRequest(request: Request): void {
    this.#ownerSetup.note(request)
    this.#become('passing')
    this.#pass()
  }

  #pass(): void {
    this.#wire.sendRequest({
      onMessage: (message) => this.#hold(message),
      onReady: (status) => this.#deliver(status),
    })
  }

  /** Responds to BEGIN without the server, which saves a round trip. */
  #deferBegin(text: string): void {
    this.#transactionStart.defer(text)
    const bytes = commandComplete(/^\s*start/i.test(text) ? 'START TRANSACTION' : 'BEGIN')
    this.#hold({ type: 'C', bytes })
    this.#deliver('T')
  }

  #send({ sends }: PlannedStep): void {
    const reader = new ResultReader()
    const handler: ResponseHandler = {
      onMessage: (message) => {
        if (this.#isPoint(message)) return
        reader.read(message)
        // The client does not see the gate's own COMMIT. If that COMMIT fails, its error is the response to the statement.
        if (sends === 'commit' && message.type === 'E') this.#held.dropTags()
        if (sends !== 'commit' || message.type === 'E') this.#hold(message)
      },
      onReady: (status) => this.#onStepDone(reader, status),
    }
    if (sends === 'request') this.#wire.sendRequest(handler)
    else this.#wire.send(sends === 'commit' ? query('commit') : sends.bytes, handler)
  }

  #onStepDone(reader: ResultReader, status: TransactionStatus): void {
    const plan = this.#plan as Plan
    this.result = reader.result
    this.transaction.push(this.result.tag)
    if (reader.error) {
      if (!plan.isSplit || status === 'I') return void this.#deliver(status)
      // The server would roll back a failed autocommit statement at once.
      const refusesBlock = this.#nextStep === 0 && REFUSES_BLOCK.has(reader.error.code)
      return void this.#wire.send(query('rollback'), {
        ...ignoreResponse,
        onReady: (after) => (refusesBlock ? this.#sendWhole() : this.#deliver(after)),
      })
    }
    if (this.#nextStep + 1 >= plan.steps.length) return void this.#deliver(status)
    this.#nextStep++
    this.precedingTexts = []
    this.#become('gated')
  }

  /** Sends a statement that cannot run in a transaction block again, as a single step. */
  #sendWhole(): void {
    const request = this.#request as Request
    const step: PlannedStep = { text: request.text, sends: 'request', endsTransaction: true }
    this.#options.planner.refuseSplit(request.text)
    this.selfCommitted = request.text
    this.#plan = { steps: [step], isSplit: false, opensSavepoint: false }
    this.#nextStep = 0
    const { bytes, kept } = request.bytesToResend(this.#held.parsed)
    this.#held.keepParsed(kept)
    const reader = new ResultReader()
    this.#wire.sendRequest(
      {
        onMessage: (message) => {
          if (this.#isPoint(message)) return
          reader.read(message)
          this.#hold(message)
        },
        onReady: (status) => this.#onStepDone(reader, status),
      },
      bytes,
    )
  }

  #isPoint({ type, bytes }: Message): boolean {
    if (type !== 'N') return false
    const fields = readFields(bytes)
    if (fields.get('C') !== POINT_CODE) return false
    this.point = fields.get('M')
    return true
  }

  /** Holds a message back, except from a client that cannot complete its request without the message. */
  #hold({ type, bytes }: Message): void {
    this.#held.add(bytes)
    const isNeededNow = type === 'G' || type === 'W' || !this.#request?.isClosed
    if (isNeededNow) this.#options.ports.toClient(this.#held.take())
  }

  #deliver(status: TransactionStatus): void {
    if (this.holdsAnswer) return void this.#become('answered')
    this.#hasSavepoint = status !== 'I' && (this.#hasSavepoint || this.#plan?.opensSavepoint === true)
    if (status === 'I') this.transaction = []
    if (this.state === 'running' || this.state === 'answered') this.precedingTexts = []
    this.#held.add(readyForQuery(status))
    const response = this.#held.take()
    this.#plan = undefined
    this.#request = undefined
    this.#deliveredAt = performance.now()
    this.#become('idle')
    this.#options.ports.toClient(response)
    this.#wire.finishRequest()
  }
}
