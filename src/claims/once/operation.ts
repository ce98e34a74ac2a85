import { lifetimeText } from '../../options/check-duration.js'
import { checkFunction } from '../../options/check-function.js'
import { MAX_TIMER_MS } from '../../options/max-timer-ms.js'
import { duration } from '../../options/number-options.js'
import { checked, required } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import type { Database } from '../../postgres/database.js'
import { type Storable, type Stored, toJson } from '../../postgres/json.js'
import { checkKey, scopeOfOperation } from '../../postgres/key.js'
import { backoffMs } from '../../postgres/retry.js'
import { checkSchema, parseInput, type StandardSchema } from '../../postgres/standard-schema.js'
import { isTerminalError } from '../../postgres/stored-failure.js'
import { newHolder } from '../../postgres/this-process.js'
import type { Claim } from '../claim.js'
import { type ClaimResult, readResult } from '../claim-result.js'
import { takeOverClaims } from '../claim-statements.js'
import { type HeldClaims, runHeld } from '../leased-run.js'
import { fingerprintOf } from './fingerprint.js'
import { LeasedOnceCall } from './leased-once-call.js'
import { attemptOnce, type PreparedOnce } from './once.js'
import { givenUpOutcome } from './once-call.js'
import {
  commonFields,
  type LeasedOnceCallSpec,
  type LeasedSpec,
  leaseFields,
  type OnceAttempt,
  type OnceResult,
} from './once-spec.js'

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

export const operationOptions = optionTable<OperationOptions<unknown, unknown>>()('dibs.operation', {
  ...leaseFields,
  keepMs: commonFields.keepMs,
  isTerminal: commonFields.isTerminal,
  input: checked<StandardSchema<unknown, unknown>>(checkSchema),
  result: checked<StandardSchema<unknown, unknown>>(checkSchema),
})

export const runOptions = optionTable<RunOptions>()(
  'operation.run, operation.runDetailed, operation.tryRun',
  {
    key: required(checked<string>(checkKey)),
    waitMs: duration({ default: 0, min: 0, max: MAX_TIMER_MS }),
    requestId: commonFields.requestId,
  },
)

/** Pause after an operation failed in an attempt that was taken over. The pause grows with each attempt, to about ten minutes at most. */
const RETRY_MS = 5_000
const MAX_RETRY_MS = 600_000

/** A named leased operation. Its input is stored with its claim, so that any process that defines the operation can finish it. */
export class Operation<Raw, A> {
  readonly name: string
  readonly #database: Database
  readonly #input: StandardSchema<unknown, unknown> | undefined
  /** The spec of a call without a key of its own. */
  readonly #spec: LeasedOnceCallSpec
  readonly #fn: (input: never, claim: Claim) => Promise<unknown>

  constructor(
    database: Database,
    name: string,
    options: OperationOptions<unknown, unknown>,
    fn: (input: never, claim: Claim) => Promise<unknown>,
  ) {
    checkKey('name', name)
    checkFunction('fn', fn)
    const { input, keepMs, ...spec } = operationOptions.read(options)
    this.name = name
    this.#database = database
    this.#input = input
    this.#spec = {
      ...spec,
      scope: scopeOfOperation(name),
      key: '',
      fingerprint: null,
      waitMs: 0,
      keepMs: lifetimeText(keepMs),
      requestId: undefined,
    }
    this.#fn = fn
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
    return await attemptOnce(await this.#prepare(input, options))
  }

  async #prepare(input: unknown, options: RunOptions): Promise<PreparedOnce<A>> {
    const read = runOptions.read(options)
    const json = toJson('input', input)
    const spec = { ...this.#spec, ...read, fingerprint: fingerprintOf('input', input) }
    const parsed = await parseInput(this.#input, JSON.parse(json))
    const call = new LeasedOnceCall(this.#database, spec, { name: this.name, input: json })
    const run = () => call.run((claim) => this.#fn(parsed as never, claim))
    return { call, run: run as () => Promise<OnceResult<A>> }
  }

  /**
   * Takes over at most `limit` unfinished claims of dead processes, and starts to finish them. Each promise resolves when its attempt has ended, and never
   * rejects.
   */
  async takeOver(limit: number): Promise<{ readonly gaveUp: number; readonly attempts: Promise<boolean>[] }> {
    const { leaseMs, keepMs, maxAttempts, onAmbiguous } = this.#spec
    // With `hold`, an attempt that may have had its effect is not repeated. Its claim stays as it is until somebody decides it by `dibs.claims.resolve`.
    if (onAmbiguous === 'hold') return { gaveUp: 0, attempts: [] }
    const sentAt = performance.now()
    const rows = await this.#database.send(takeOverClaims, [
      ...[this.name, newHolder(), String(leaseMs), keepMs],
      ...[String(maxAttempts), givenUpOutcome(maxAttempts), String(limit)],
    ])
    const attempts: Promise<boolean>[] = []
    for (const row of rows) {
      const granted = readResult(row)
      const call = new LeasedOnceCall(this.#database, { ...this.#spec, key: granted.key })
      if (granted.state === 'gave up') call.emit('dibs:once.gave-up', { attempt: granted.attempt })
      else attempts.push(this.#database.work(() => this.#finish(call, granted, row.input ?? 'null', sentAt)))
    }
    return { gaveUp: rows.length - attempts.length, attempts }
  }

  /** Finishes a claim that was taken over. Resolves to true if the claim has its outcome now. */
  async #finish(call: LeasedOnceCall, granted: ClaimResult, input: string, sentAt: number): Promise<boolean> {
    const { attempt, lost } = granted
    call.emit('dibs:once.taken-over', { attempt, lost })
    const handler = async (claim: Claim): Promise<unknown> =>
      this.#fn((await parseInput(this.#input, JSON.parse(input))) as never, claim)
    const retryInMs = Math.ceil(RETRY_MS + backoffMs(lost, RETRY_MS, MAX_RETRY_MS))
    try {
      const prepare = (held: HeldClaims<ClaimResult>) => call.prepareWork(held, granted, true, handler)
      await runHeld(call, granted, sentAt, { prepare, retryInMs })
      return true
    } catch (error) {
      const isFinal = isTerminalError(error, call.spec.isTerminal)
      call.emit('dibs:operation.failed', { operation: this.name, attempt, isFinal, error })
      return isFinal
    }
  }
}

/** The members of an operation that maintenance needs, for any type of input and result. */
export type Unfinished = Pick<Operation<never, unknown>, 'name' | 'takeOver'>

/** The result of an operation: the outcome as parsed by its schema `result`, or as JSON returns it. */
export type OperationAnswer<R, T> = unknown extends R ? Stored<T> : R
