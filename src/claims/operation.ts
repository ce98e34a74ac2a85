import { fullJitterMs } from '../postgres/backoff.js'
import { checkFunction } from '../postgres/check-function.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { type Storable, type Stored, toJson } from '../postgres/json.js'
import { checkKey, scopeOfOperation } from '../postgres/key.js'
import { checkSchema, parseInput, type StandardSchema } from '../postgres/standard-schema.js'
import { isTerminalError } from '../postgres/stored-failure.js'
import type { Claim } from './claim.js'
import { takeOverClaims } from './claim-statements.js'
import { fingerprintOf } from './fingerprint.js'
import { attemptOnce } from './once.js'
import { explainGivingUp, OnceCall } from './once-call.js'
import { onceLeased, workOn } from './once-leased.js'
import {
  type LeasedSpec,
  type OnceAttempt,
  type OnceResult,
  type ReadLeasedSpec,
  readLease,
  readSpec,
} from './once-spec.js'
import { readTold, type ToldClaim } from './told-claim.js'

/** Options of an operation. Give the same options in every process that defines the operation. */
export interface OperationOptions<I, R, Raw = I>
  extends Pick<LeasedSpec, 'leaseMs' | 'maxAttempts' | 'onAmbiguous' | 'keepMs' | 'isTerminal'> {
  /** Parses the input before each attempt. Any Standard Schema. */
  readonly input?: StandardSchema<Raw, I> | undefined
  /** Parses the stored outcome, for the first caller and for later ones. Any Standard Schema. */
  readonly result?: StandardSchema<unknown, R> | undefined
}

/** Options of one call of an operation. */
export type RunOptions = Pick<LeasedSpec, 'key' | 'waitMs' | 'requestId'>

/** Pause after an operation failed in an attempt that was taken over. The pause grows with each attempt, to about ten minutes at most. */
const REST_MS = 5_000
const MAX_REST_MS = 600_000

/** A named leased operation. Its input is stored with its claim, so that any process that defines the operation can finish it. */
export class Operation<Raw, A> {
  readonly name: string
  readonly #database: Database
  readonly #options: OperationOptions<unknown, unknown>
  readonly #fn: (input: never, claim: Claim) => Promise<unknown>
  readonly #scope: string

  constructor(
    database: Database,
    name: string,
    options: OperationOptions<unknown, unknown>,
    fn: (input: never, claim: Claim) => Promise<unknown>,
  ) {
    checkKey('name', name)
    checkFunction('fn', fn)
    checkOptions(options, [
      'input',
      'result',
      'leaseMs',
      'maxAttempts',
      'onAmbiguous',
      'keepMs',
      'isTerminal',
    ])
    checkSchema('input', options.input)
    this.name = name
    this.#database = database
    this.#options = options
    this.#fn = fn
    this.#scope = scopeOfOperation(name)
    this.#read('check', {}, null) // reports invalid options now, not at the first call
  }

  /**
   * Runs the operation once for this key, or returns the stored outcome. While another caller works on the key, `run` waits for `waitMs` (default 0). Then
   * it throws `InProgressError` or, after a wait, `BusyError`.
   *
   * @example
   * const charge = dibs.operation('charge', {}, async (input: { amount: number }, claim) =>
   *   bank.pay(input.amount, claim.idempotencyKey),
   * )
   * const payment = await charge.run({ amount: 10 }, { key: `order-${id}`, waitMs: 10_000 })
   */
  async run(input: Storable<Raw>, options: RunOptions): Promise<A> {
    return (await this.runDetailed(input, options)).value
  }

  /** As `run`, and also returns whether the outcome is a stored one, its attempt and its time. */
  async runDetailed(input: Storable<Raw>, options: RunOptions): Promise<OnceResult<A>> {
    return await (await this.#prepare(input, options)).run()
  }

  /**
   * As `runDetailed`, but returns `{ ok: false }` instead of an error while another caller works on the key. Other errors are thrown, also those of the
   * operation.
   *
   * @example
   * const charge = dibs.operation('charge', {}, async (input: { amount: number }, claim) =>
   *   bank.pay(input.amount, claim.idempotencyKey),
   * )
   * const attempt = await charge.tryRun({ amount: 10 }, { key: `order-${id}` })
   * if (!attempt.ok) console.log(`${attempt.holder ?? 'another process'} charges it, ask again in ${attempt.retryAfterMs} ms`)
   */
  async tryRun(input: Storable<Raw>, options: RunOptions): Promise<OnceAttempt<A>> {
    const { call, run } = await this.#prepare(input, options)
    return await attemptOnce(call, run)
  }

  async #prepare(
    input: unknown,
    options: RunOptions,
  ): Promise<{ readonly call: OnceCall; readonly run: () => Promise<OnceResult<A>> }> {
    checkOptions(options, ['key', 'waitMs', 'requestId'])
    const text = toJson('input', input)
    const spec = this.#read(options.key, options, fingerprintOf('input', input))
    const parsed = await parseInput(this.#options.input, JSON.parse(text))
    const call = new OnceCall(this.#database, spec)
    const operation = { name: this.name, input: text }
    const work = (claim: Claim) => this.#fn(parsed as never, claim)
    return { call, run: async () => (await onceLeased(call, spec, work, operation)) as OnceResult<A> }
  }

  /**
   * Takes over at most `limit` unfinished claims of dead processes, and starts to finish them. Each promise resolves when its attempt has ended, and never
   * rejects.
   */
  async takeOver(limit: number): Promise<{ readonly gaveUp: number; readonly attempts: Promise<boolean>[] }> {
    const spec = this.#read('takeover', {}, null)
    // With `hold`, an attempt that may have had its effect is not repeated. Its claim stays as it is until somebody asks for it.
    if (spec.onAmbiguous === 'hold') return { gaveUp: 0, attempts: [] }
    const { holder } = new OnceCall(this.#database, spec)
    const { leaseMs, keepMs, maxAttempts } = spec
    const sentAt = performance.now()
    const rows = await this.#database.send(takeOverClaims, [
      ...[
        this.name,
        holder,
        String(leaseMs),
        keepMs,
        String(maxAttempts),
        explainGivingUp(maxAttempts),
        String(limit),
      ],
    ])
    const attempts: Promise<boolean>[] = []
    for (const row of rows) {
      const told = readTold(row)
      const own = { ...spec, key: told.key }
      const call = new OnceCall(this.#database, own)
      if (told.state === 'gave up') call.emit('dibs:once.gave-up', { attempt: told.attempt })
      else attempts.push(this.#database.work(() => this.#finish(call, own, told, row.input ?? null, sentAt)))
    }
    return { gaveUp: rows.length - attempts.length, attempts }
  }

  /** Finishes a claim that was taken over. Resolves to true if the claim has its outcome now. */
  async #finish(
    call: OnceCall,
    spec: ReadLeasedSpec,
    told: ToldClaim,
    input: string | null,
    sentAt: number,
  ): Promise<boolean> {
    const { attempt, lost } = told
    call.emit('dibs:once.taken-over', { attempt, lost })
    const handler = async (claim: Claim): Promise<unknown> =>
      this.#fn((await parseInput(this.#options.input, JSON.parse(input ?? 'null'))) as never, claim)
    const retryInMs = Math.ceil(REST_MS + fullJitterMs(lost, REST_MS, MAX_REST_MS))
    try {
      await workOn(call, spec, told, { handler, sentAt, isAmbiguous: true, retryInMs })
      return true
    } catch (error) {
      const isFinal = isTerminalError(error, spec.isTerminal)
      call.emit('dibs:operation.failed', { operation: this.name, attempt, isFinal, error })
      return isFinal
    }
  }

  #read(key: string, options: Omit<RunOptions, 'key'>, fingerprint: string | null): ReadLeasedSpec {
    const { leaseMs, maxAttempts, onAmbiguous, keepMs, isTerminal, result } = this.#options
    const { waitMs, requestId } = options
    const lease = readLease({ leaseMs, maxAttempts, onAmbiguous })
    const spec = readSpec(
      { mode: 'leased', scope: 'operation', key, waitMs, requestId, keepMs, isTerminal, result },
      false,
    )
    return { ...spec, ...lease, scope: this.#scope, fingerprint }
  }
}

/** The members of an operation that maintenance needs, for any type of input and result. */
export type Unfinished = Pick<Operation<never, unknown>, 'name' | 'takeOver'>

/** The result of an operation: the outcome as parsed by its schema `result`, or as JSON returns it. */
export type OperationAnswer<R, T> = unknown extends R ? Stored<T> : R
