import { InvalidInputError, PermanentError } from '../errors.js'
import { MAX_JSON_BYTES, type Stored, toOutcome } from '../postgres/json.js'
import { checkKey, keyOf } from '../postgres/key.js'
import type { Claim, StepContext } from './claim.js'
import type { ClaimResult } from './claim-result.js'
import { stepClaim } from './claim-statements.js'
import { type HeldClaims, WRITE_WAIT_MS } from './leased-run.js'
import type { OnceCall } from './once/once-call.js'

/** Together with the id of the claim, the name of a step must fit into its idempotency key. */
const MAX_STEP_BYTES = 200

/** The handle of a leased claim that this process holds. */
export class HeldClaim implements Claim {
  readonly id: string
  readonly fence: number
  readonly attempt: number
  readonly idempotencyKey: string
  readonly #call: OnceCall
  readonly #held: HeldClaims<ClaimResult>
  /** The recorded results of steps, by the names of the steps. */
  readonly #results: Map<string, string>
  /** The names of the steps that this attempt has begun. */
  readonly #begun = new Set<string>()

  constructor(call: OnceCall, { id, fence, attempt, steps }: ClaimResult, held: HeldClaims<ClaimResult>) {
    this.id = id
    this.fence = fence
    this.attempt = attempt
    this.idempotencyKey = id
    this.#call = call
    this.#held = held
    this.#results = new Map(Object.entries(steps ?? {}))
  }

  get signal(): AbortSignal {
    return this.#held.signal
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
    const known = this.#results.get(name)
    if (known !== undefined) return readStep(known) as Stored<T> // guard: once.step-memo
    this.signal.throwIfAborted()
    const value = await fn({ idempotencyKey: keyOf(this.id, name), signal: this.signal })
    const json = this.#writeStep(name, value)
    const { database, spec } = this.#call
    const values = [spec.scope, spec.key, String(this.fence), WRITE_WAIT_MS, name, json]
    const [row] = await database.send(stepClaim, values, { duringClose: true, retry: true })
    if (row?.state !== 'held') {
      this.#held.loseByStep()
      throw this.signal.reason
    }
    this.#results.set(name, json)
    return readStep(json) as Stored<T>
  }

  /** The step is done, so a result that cannot be stored must not cause a repetition. */
  #writeStep(name: string, value: unknown): string {
    try {
      const json = value === undefined ? '' : toOutcome(`step "${name}"`, value)
      const bytes = [...this.#results.values(), json].reduce((sum, one) => sum + Buffer.byteLength(one), 0)
      if (bytes <= MAX_JSON_BYTES) return json
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

  /** Stops the renewal of the lease. */
  stop(): void {
    this.#held.stopRenewal()
  }
}

/** An empty string is the result of a step that returned undefined. */
const readStep = (json: string): unknown => (json === '' ? undefined : JSON.parse(json))
