import {
  commandComplete,
  type ErrorFields,
  errorResponse,
  readFields,
  readyForQuery,
  type TransactionStatus,
} from '../wire/backend.js'
import { query } from '../wire/frontend.js'
import type { Message } from '../wire/message-reader.js'
import type { Request } from '../wire/request.js'
import { type Asked, Wire, type WirePorts } from '../wire/wire.js'
import { type Plan, type PlannedStep, type Planner, valuesOf } from './plan.js'
import { ResultReader, type StepResult } from './result.js'
import { shorterOf, timeoutIn } from './timeout-in.js'

/**
 * - `opening`, `idle`: nothing is asked of the server;
 * - `planning`, `passing`: a request is on its way without being a step;
 * - `gated`: a step waits to be released;
 * - `running`: a step was released and has no answer yet;
 * - `answered`: the server has done the whole request, and the client has not heard of it (`keepsAnswer`);
 * - `closing`: the client has gone and the server may still hold its locks; `closed`: it is gone as well.
 */
export type SessionState =
  | 'opening'
  | 'idle'
  | 'planning'
  | 'passing'
  | 'gated'
  | 'running'
  | 'answered'
  | 'closing'
  | 'closed'

/** Who hears about a session. */
export interface SessionObserver {
  onChange(session: GatedSession): void
}

export interface GatedSessionOptions {
  readonly ports: WirePorts
  readonly planner: Planner
  readonly observer: SessionObserver
  /** Settings that the session begins with. */
  readonly settings: Readonly<Record<string, string>>
  /** What must be done before the first request. */
  readonly prepare?: ((session: GatedSession) => Promise<void>) | undefined
  /** Somebody has got it from a pool. */
  readonly onHandOver?: ((session: GatedSession) => void) | undefined
  /** Ends the connection on both sides. */
  readonly destroy: () => void
  /** The same without the client hearing of it, where that can be done. */
  readonly abandon: () => void
  /** The client reaches it through the network, and what it sends takes its time. */
  readonly isRemote?: boolean | undefined
}

/** A notice with this code is a yield point of a function; its message is the point's name. */
export const POINT_CODE = 'DIBPT'

/** How long a client across the loopback has for its next request before it counts as busy with something else. */
const ANSWERED_MS = 3

/** What a client may have left in its session; settings go back to what the session began with. */
const CLEAN_SESSION =
  'set session authorization default; reset role; reset all; select pg_advisory_unlock_all(); close all; unlisten *; discard temp; discard sequences'

/** Those of SQL: what a driver has prepared it remembers. */
const DEALLOCATE = `do $$ declare one record; begin
  for one in select name from pg_catalog.pg_prepared_statements where from_sql loop
    execute format('deallocate %I', one.name);
  end loop; end $$`

const BEGINS = /^\s*(?:begin|start\s+transaction)\b/i
const CHAINS = /\band\s+chain\b/i

/** Whatever comes after it in its transaction is refused. */
const FAIL = `do $dibs$ begin raise exception 'injected'; end $dibs$`

const COMMAND_COMPLETE = 'C'.charCodeAt(0)
const PARSE_COMPLETE = '1'.charCodeAt(0)

/** SQLSTATEs of "cannot run inside a transaction block" and of a COMMIT inside a procedure that has no right to one. */
const REFUSES_BLOCK: ReadonlySet<string | undefined> = new Set(['25001', '2D000'])

/** What a client is to hear in place of an answer. */
export type InjectedError = Pick<ErrorFields, 'code' | 'message'>

/** One connection whose statements run when they are told to. */
export class GatedSession {
  state: SessionState = 'opening'
  /** The point in a function that the running step has come to last. */
  point: string | undefined
  /** The answer to the step that ran last. */
  result: StepResult | undefined
  /** A statement that commits by itself was run: nobody knows what it has written. */
  endsItself: string | undefined
  /** The client has set `lock_timeout` or `statement_timeout`: a wait ends by itself after so long. */
  timeoutMs: number | undefined
  /** The client has taken on another role, which may have fewer rights. */
  hasOtherRole = false
  /** Texts that went to the server at once and belong to the next step's line. */
  fused: string[] = []
  /** Texts of the open transaction, in order. */
  transaction: string[] = []
  /** The answer to the request under way stays here until `answer()`. */
  keepsAnswer = false
  readonly #options: GatedSessionOptions
  readonly #wire: Wire
  #prepared: Promise<void> | undefined
  #deliveredAt = 0
  #hasSavepoint = false
  /** A BEGIN that the client takes for done and the server has not seen yet. */
  #begin: string | undefined
  /** What the owner of the pool does to each new connection (`pool.on('connect')`). */
  readonly basis: string[] = []
  /** How many more requests are the owner's. */
  #ownerRequests = 0
  /** Statements were prepared by SQL, which stay in the session. */
  #hasPrepared = false
  /** What was sent in a transaction that has had no step yet, from its BEGIN on. */
  #opening: string[] = []
  #request: Request | undefined
  #plan: Plan | undefined
  #nextStep = 0
  /** What the client will get once the last step is done. */
  #held: Buffer[] = []

  constructor(options: GatedSessionOptions) {
    this.#options = options
    this.#wire = new Wire(
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
        // It could not be planned: the explorer's own connection is gone, and the exploration with it.
        onRequest: (request) => void this.#onRequest(request).catch(() => this.destroy()),
        onTerminate: () => this.#become('closing'),
      },
      { settings: options.settings },
    )
  }

  /** A reply was handed to a client that may be about to send the next request. */
  get isJustAnswered(): boolean {
    return (
      this.#options.isRemote === true &&
      this.state === 'idle' &&
      performance.now() - this.#deliveredAt < ANSWERED_MS
    )
  }

  get pid(): number {
    return this.#wire.pid
  }

  /** Resolves when what must be done before the first request is done. */
  get isPrepared(): Promise<void> | undefined {
    return this.#prepared
  }

  /** As the client sees it. */
  get status(): TransactionStatus {
    return this.#begin === undefined ? this.#wire.status : 'T'
  }

  /** A transaction has done something and is not over. An error frees its locks, unless a savepoint keeps some. */
  get holdsLocks(): boolean {
    if (this.#opening.length > 0) return false
    return this.#wire.status === 'T' || (this.#wire.status === 'E' && this.#hasSavepoint)
  }

  /** The step that waits, or that runs. */
  get step(): PlannedStep | undefined {
    return this.#plan?.steps[this.#nextStep]
  }

  /** Nothing of the request that waits was sent yet. */
  get isFirstStep(): boolean {
    return this.#nextStep === 0
  }

  /** The request is a transaction of its own, and may write. */
  get isSplit(): boolean {
    return this.#plan?.isSplit === true
  }

  /** What the client asked for. Some drivers send parameters only after the server has described the statement. */
  get request(): Request | undefined {
    return this.#request
  }

  /** The parameters of the step that waits, or that runs. */
  get values(): readonly (string | null)[] {
    return valuesOf(this.step, this.#request)
  }

  fromClient(chunk: Buffer): void {
    this.#wire.fromClient(chunk)
  }

  fromServer(chunk: Buffer): void {
    this.#wire.fromServer(chunk)
  }

  /** Either side has closed the connection. */
  onClose(): void {
    if (this.state !== 'closed') this.#become('closing')
  }

  /** The server has let go of it. */
  onGone(): void {
    this.#become('closed')
  }

  destroy(): void {
    this.#options.destroy()
  }

  abandon(): void {
    this.#options.abandon()
  }

  /** Lets the next step run. `prelude` goes first, in the same message, and the client hears nothing of it. */
  release(prelude: readonly string[] = []): void {
    const step = this.step
    if (!step) throw new Error('no step waits here')
    this.point = undefined
    this.result = undefined
    this.#become('running')
    // Before the transaction where it begins here: some settings take a snapshot, which would be too early within it.
    const begins = this.#beginning()
    for (const sql of [...begins.slice(0, 1), ...(this.status === 'E' ? [] : prelude), ...begins.slice(1)])
      if (sql !== '') this.#tell(sql)
    this.transaction.push(`${step.text} ${JSON.stringify(this.values)}`)
    this.#send(step)
  }

  /** The client hears what the server has said. */
  answer(): void {
    this.keepsAnswer = false
    this.#deliver(this.#wire.status)
  }

  /**
   * The request that waits fails, with an error that the server might have raised, and its transaction fails with it. What
   * the client has sent goes to the server, which refuses it in the way of the protocol that the client speaks.
   */
  refuse(error: InjectedError): void {
    const step = this.step
    if (!step) throw new Error('no step waits here')
    const isAlone = this.status === 'I'
    this.#become('running')
    this.result = { tag: '', rows: [], rowCount: 0, error }
    if (isAlone) this.#tell('begin')
    else this.#sendBegin()
    this.#opening = []
    this.#tell(FAIL)
    let isTold = false
    this.#wire.send({
      onMessage: (message) => {
        // COMMIT of a failed transaction is answered with a tag.
        if (isTold || (message.type !== 'E' && message.type !== 'C')) return
        isTold = true
        this.#hold({ type: 'E', bytes: errorResponse({ severity: 'ERROR', ...error }) })
      },
      onReady: (status) => {
        // BEGIN was in the message, and has been done; COMMIT AND CHAIN has begun nothing.
        const stays = isAlone
          ? BEGINS.test(this.#request?.text ?? '')
          : !CHAINS.test(this.#request?.text ?? '')
        if (stays) return void this.#deliver(status)
        this.#wire.ask(query('rollback'), { onMessage: () => {}, onReady: (after) => this.#deliver(after) })
      },
    })
  }

  /** The server ends the connection, and says why; or the network does, and nobody says anything. */
  cut(error: InjectedError, saysWhy: boolean): void {
    this.result = { tag: '', rows: [], rowCount: 0, error }
    if (saysWhy) this.#options.ports.toClient(errorResponse({ severity: 'FATAL', ...error }))
    // What was said must get there first.
    setImmediate(() => this.destroy())
  }

  /** Before a new run: nothing that an earlier one left belongs to it. */
  begin(): void {
    this.keepsAnswer = false
    this.fused = []
    this.timeoutMs = undefined
    this.hasOtherRole = false
    this.transaction = []
    this.point = undefined
    this.result = undefined
  }

  /** Back to how it was when it was new; if that fails, it ends. */
  async clean(): Promise<void> {
    this.#begin = undefined
    this.#opening = []
    if (this.#wire.status !== 'I') await this.tell('rollback')
    const { error } = await this.tell(this.#hasPrepared ? `${CLEAN_SESSION}; ${DEALLOCATE}` : CLEAN_SESSION)
    if (error) return this.abandon()
    for (const sql of this.basis) await this.tell(sql)
  }

  /** Until it is handed over, what is asked for is the doing of its owner. */
  takeOver(): void {
    this.#ownerRequests = Number.POSITIVE_INFINITY
  }

  /** From now on it is the client's; `queued` requests that its owner has made are still to come. */
  handOver(queued: number): void {
    this.#ownerRequests = queued
    this.#options.onHandOver?.(this)
  }

  /** Statements of our own on an idle session. */
  tell(sql: string): Promise<StepResult> {
    return new Promise((resolve) => {
      const reader = new ResultReader()
      this.#wire.ask(query(sql), {
        onMessage: (message) => reader.read(message),
        onReady: () => resolve(reader.result),
      })
    })
  }

  /**
   * A transaction begins with its first step: its `now()` is that of the step, and so is its snapshot. Where BEGIN had to go
   * to the server before, because the client said more that must be answered, the transaction begins anew.
   *
   * @returns what is to be sent before our own settings, and after them
   */
  #beginning(): readonly string[] {
    const opening = this.#opening
    const begin = this.#begin
    this.#opening = []
    this.#begin = undefined
    if (this.#plan?.isSplit && this.#nextStep === 0) return ['', 'begin']
    if (begin !== undefined) return ['', begin]
    // A comment at the end of one must not swallow the next.
    return opening.length > 0 && this.status === 'T' ? ['rollback', opening.join('\n; ')] : []
  }

  #sendBegin(): void {
    if (this.#begin === undefined) return
    this.#tell(this.#begin)
    this.#begin = undefined
  }

  #become(state: SessionState): void {
    this.state = state
    this.#options.observer.onChange(this)
  }

  #tell(sql: string): void {
    this.#wire.ask(query(sql), { onMessage: () => {}, onReady: () => {} })
  }

  async #onRequest(request: Request): Promise<void> {
    this.#request = request
    this.hasOtherRole ||= /\bset\s+(?:local\s+|session\s+)?(?:role|session\s+authorization)\b/i.test(
      request.text,
    )
    this.timeoutMs = shorterOf(this.timeoutMs, timeoutIn(request.text))
    this.#held = []
    this.#nextStep = 0
    this.state = 'planning'
    // Told when it comes: by the time that all is prepared, the session may have been handed over.
    const isOwners = this.#ownerRequests > 0
    if (isOwners) this.#ownerRequests--
    if (this.#prepared) await this.#prepared
    this.#prepared = undefined
    if (isOwners) return this.#passOwners(request)
    this.#hasPrepared ||= /^\s*prepare\s+(?!transaction)/i.test(request.text)
    const plan = this.#options.planner.plan(request, {
      status: this.status,
      hasSavepoint: this.#hasSavepoint,
    })
    // Without an await when there is nothing to wait for: what passes at once arrives in order with what came before.
    this.#plan = plan instanceof Promise ? await plan : plan
    if (this.#plan.steps.length > 0) return this.#become('gated')
    this.#become('passing')
    this.fused.push(request.text)
    if (this.#plan.beginsAlone && this.status === 'I') return this.#deferBegin(request.text)
    this.#noteOpening(request.text)
    this.#sendBegin()
    this.#wire.send({
      onMessage: (message) => this.#hold(message),
      onReady: (status) => this.#deliver(status),
    })
  }

  /** Not the client's doing: it goes to the server at once, and again after each schedule. */
  #passOwners(request: Request): void {
    if (request.values.length === 0) this.basis.push(request.text)
    this.#become('passing')
    this.#wire.send({
      onMessage: (message) => this.#hold(message),
      onReady: (status) => this.#deliver(status),
    })
  }

  /** It can be answered without the server, which saves a round trip. */
  #deferBegin(text: string): void {
    this.#begin = text
    const bytes = commandComplete(/^\s*start/i.test(text) ? 'START TRANSACTION' : 'BEGIN')
    this.#hold({ type: 'C', bytes })
    this.#deliver('T')
  }

  /** What a transaction without a step has said so far; the status is still the one before. */
  #noteOpening(text: string): void {
    if (this.#begin !== undefined) this.#opening = [this.#begin, text]
    else if (this.status === 'I' && this.#plan?.begins) this.#opening = [text]
    else if (this.status === 'T' && this.#opening.length > 0) this.#opening.push(text)
    else this.#opening = []
  }

  #send({ sends }: PlannedStep): void {
    const reader = new ResultReader()
    const asked: Asked = {
      onMessage: (message) => {
        if (this.#isPoint(message)) return
        reader.read(message)
        // What our own COMMIT answers is not for the client, unless it failed: then that is the statement's answer.
        if (sends === 'commit' && message.type === 'E') this.#dropTags()
        if (sends !== 'commit' || message.type === 'E') this.#hold(message)
      },
      onReady: (status) => this.#onStepDone(reader, status),
    }
    if (sends === 'request') this.#wire.send(asked)
    else this.#wire.ask(sends === 'commit' ? query('commit') : sends.bytes, asked)
  }

  #onStepDone(reader: ResultReader, status: TransactionStatus): void {
    const plan = this.#plan as Plan
    this.result = reader.result
    this.transaction.push(this.result.tag)
    if (reader.error) {
      if (!plan.isSplit || status === 'I') return void this.#deliver(status)
      // An autocommit statement that fails is rolled back by the server there and then.
      const refused = this.#nextStep === 0 && REFUSES_BLOCK.has(reader.error.code)
      return void this.#wire.ask(query('rollback'), {
        onMessage: () => {},
        onReady: (after) => (refused ? this.#sendWhole() : this.#deliver(after)),
      })
    }
    if (this.#nextStep + 1 >= plan.steps.length) return void this.#deliver(status)
    this.#nextStep++
    this.fused = []
    this.#become('gated')
  }

  /** The statement does not run in a transaction block, so it is one step after all. */
  #sendWhole(): void {
    const request = this.#request as Request
    const step: PlannedStep = { text: request.text, sends: 'request', endsTransaction: true }
    this.#options.planner.refuseSplit(request.text)
    this.endsItself = request.text
    this.#plan = { steps: [step], isSplit: false, opensSavepoint: false }
    this.#nextStep = 0
    const parsed = this.#held.filter((held) => held[0] === PARSE_COMPLETE)
    const { bytes, kept } = request.again(parsed.length)
    this.#held = parsed.slice(0, kept)
    const reader = new ResultReader()
    this.#wire.send(
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

  /** A statement whose COMMIT failed has failed, whatever it said before. */
  #dropTags(): void {
    this.#held = this.#held.filter((held) => held[0] !== COMMAND_COMPLETE)
  }

  /** Keeps an answer back, except from a client that cannot go on without it. */
  #hold({ type, bytes }: Message): void {
    this.#held.push(bytes)
    const waitsForIt = type === 'G' || type === 'W' || !this.#request?.isClosed
    if (!waitsForIt) return
    this.#options.ports.toClient(Buffer.concat(this.#held))
    this.#held = []
  }

  #deliver(status: TransactionStatus): void {
    if (this.keepsAnswer) return void this.#become('answered')
    this.#hasSavepoint = status !== 'I' && (this.#hasSavepoint || this.#plan?.opensSavepoint === true)
    if (status === 'I') this.transaction = []
    if (this.state === 'running' || this.state === 'answered') this.fused = []
    const held = Buffer.concat([...this.#held, readyForQuery(status)])
    this.#held = []
    this.#plan = undefined
    this.#request = undefined
    this.#deliveredAt = performance.now()
    this.#become('idle')
    this.#options.ports.toClient(held)
    this.#wire.next()
  }
}
