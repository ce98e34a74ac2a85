import { InvalidInputError, OutcomeNotStoredError, PermanentError } from '../errors.js'
import { MAX_JSON_BYTES, type Stored, toOutcome } from '../postgres/json.js'
import { checkKey, keyOf } from '../postgres/key.js'
import { lineOf, type ReservedLine } from '../postgres/reserved-line.js'
import { sendSurely } from '../postgres/send-surely.js'
import type { Claim, StepContext } from './claim.js'
import { endClaim, finishClaim, renewClaim, stepClaim } from './claim-statements.js'
import { Lease } from './lease.js'
import type { OnceCall } from './once-call.js'
import { readTold, type ToldClaim } from './told-claim.js'

/** How long one of them waits for the row, which only an operator or a passing caller can have locked. */
const WAIT_MS = '5000'

/** Leaves room for the id in a step's own idempotency key. */
const MAX_STEP_BYTES = 200

/** A leased claim in the hands of this process. Each of its writes names the fence, and learns if that is lost. */
export class HeldClaim implements Claim {
  readonly id: string
  readonly fence: number
  readonly attempt: number
  readonly idempotencyKey: string
  readonly #call: OnceCall
  readonly #lease: Lease
  readonly #line: ReservedLine
  readonly #known: Map<string, string>
  /** Steps of this attempt. */
  readonly #begun = new Set<string>()
  #isOver = false

  /** @param sinceAt when the statement was sent that began the lease, by `performance.now()` */
  constructor(call: OnceCall, { id, fence, attempt, steps }: ToldClaim, leaseMs: number, sinceAt: number) {
    this.id = id
    this.fence = fence
    this.attempt = attempt
    this.idempotencyKey = id
    this.#call = call
    this.#known = new Map(Object.entries(steps ?? {}))
    this.#line = lineOf(call.database)
    this.#line.enter()
    this.#lease = new Lease(
      () => this.#renew(leaseMs),
      leaseMs,
      sinceAt,
      (how) => call.lost(fence, how),
    )
  }

  get signal(): AbortSignal {
    return this.#lease.signal
  }

  get #name(): [string, string, string, string] {
    const { scope, key } = this.#call.spec
    return [scope, key, String(this.fence), WAIT_MS]
  }

  /** Over a connection of its own, or else one of the pool: handlers may have taken all of these. */
  async #renew(leaseMs: number): Promise<boolean> {
    const withinMs = Math.ceil(leaseMs / 3)
    const [scope, key, fence] = this.#name
    const values = [scope, key, fence, String(withinMs), String(leaseMs)]
    const rows = await this.#line
      .send(renewClaim, values, withinMs)
      .catch(() => this.#call.database.sendPart(renewClaim, values, withinMs))
    return rows[0]?.state === 'held'
  }

  async step<T>(name: string, fn: (context: StepContext) => Promise<T> | T): Promise<Stored<T>> {
    checkKey('name', name)
    if (Buffer.byteLength(name) > MAX_STEP_BYTES)
      throw new InvalidInputError('name', `must be at most ${MAX_STEP_BYTES} bytes long`)
    if (this.#begun.has(name))
      throw new InvalidInputError(
        'name',
        `"${name}" is that of another step of this attempt; give each its own`,
      )
    this.#begun.add(name)
    const known = this.#known.get(name)
    if (known !== undefined) return readStep(known) as Stored<T>
    this.signal.throwIfAborted()
    const value = await fn({ idempotencyKey: keyOf(this.id, name), signal: this.signal })
    const text = this.#writeStep(name, value)
    const [row] = await sendSurely(this.#call, stepClaim, () => [...this.#name, name, text])
    if (row?.state !== 'held') {
      this.#lease.lose('step')
      throw this.signal.reason
    }
    this.#known.set(name, text)
    return readStep(text) as Stored<T>
  }

  /** The work of the step is done: what cannot be kept of it must not make it be done again. */
  #writeStep(name: string, value: unknown): string {
    try {
      const text = value === undefined ? '' : toOutcome(`step "${name}"`, value)
      const bytes = [...this.#known.values(), text].reduce((sum, one) => sum + Buffer.byteLength(one), 0)
      if (bytes <= MAX_JSON_BYTES) return text
      throw new Error(
        `\`step "${name}"\` must be at most ${MAX_JSON_BYTES} bytes with all steps before it, and is ${bytes}.`,
      )
    } catch (error) {
      throw new PermanentError(
        `A step is done, but its outcome cannot be kept: ${(error as Error).message}`,
        { cause: error },
      )
    }
  }

  /** Stores what came of it; what is there in the end, by whomever. */
  async finish(status: 'active' | 'failed', outcome: string | null): Promise<ToldClaim> {
    const { keepMs } = this.#call.spec
    try {
      const values = [...this.#name, status, outcome, keepMs, 'false']
      const [row] = await sendSurely(this.#call, finishClaim, () => values)
      return readTold(row)
    } catch (error) {
      this.#call.emit('dibs:once.not-stored', { error })
      throw new OutcomeNotStoredError(this.#call.subject, this.id, { cause: error })
    } finally {
      this.stop()
    }
  }

  /**
   * Ends the attempt without an outcome: released (`restMs` null), or as if its lease had so long to go. If that cannot be
   * said, the lease runs out by itself.
   */
  async end(restMs: number | null, error: string, isVoid: boolean): Promise<void> {
    this.stop()
    const { keepMs } = this.#call.spec
    const rest = restMs === null ? null : String(restMs)
    const values = [...this.#name, rest, keepMs, error, String(isVoid)]
    await sendSurely(this.#call, endClaim, () => values).catch(() => {})
  }

  /** From now on nobody renews the lease. */
  stop(): void {
    this.#lease.stop()
    if (!this.#isOver) this.#line.leave()
    this.#isOver = true
  }
}

const readStep = (text: string): unknown => (text === '' ? undefined : JSON.parse(text))
