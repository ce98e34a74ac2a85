import {
  CommitOutcomeUnknownError,
  DibsError,
  InvalidInputError,
  OutcomeNotStoredError,
  PermanentError,
} from '../errors.js'
import { fullJitterMs } from '../postgres/backoff.js'
import { sleep } from '../postgres/sleep.js'
import type { Statement } from '../postgres/statement.js'
import type { TextRow, TextValue } from '../postgres/text-values.js'
import type { Claim, StepContext } from './claim.js'
import type { ClaimRow } from './claim-row.js'
import { endClaim, finishClaim, renewClaim, stepClaim } from './claim-statements.js'
import { MAX_JSON_BYTES, type Stored, toJson } from './json.js'
import { checkKey, keyOf } from './key.js'
import { Lease } from './lease.js'
import type { OnceCall } from './once-call.js'

/** How often a statement is sent whose answer does not come. Each may be sent again: it names its fence, or its holder. */
const MAX_TRIES = 5

/** Sends a statement that may be repeated until its answer comes, within bounds. */
export async function sendSurely(
  { database }: OnceCall,
  statement: Statement,
  values: () => readonly TextValue[],
): Promise<TextRow[]> {
  for (let tries = 1; ; tries++) {
    try {
      return await database.sendPart(statement, values())
    } catch (error) {
      const mayHelp =
        error instanceof CommitOutcomeUnknownError || (error instanceof DibsError && error.retryable)
      if (!mayHelp || tries === MAX_TRIES) throw error
      await sleep(fullJitterMs(tries, 20, 500))
    }
  }
}

/** A leased claim in the hands of this process. Each of its writes names the fence, and learns if that is lost. */
export class HeldClaim implements Claim {
  readonly id: string
  readonly fence: number
  readonly attempt: number
  readonly idempotencyKey: string
  readonly #call: OnceCall
  readonly #lease: Lease
  readonly #steps: Map<string, string>

  /** @param sinceAt when the statement was sent that began the lease, by `performance.now()` */
  constructor(call: OnceCall, { id, fence, attempt, steps }: ClaimRow, leaseMs: number, sinceAt: number) {
    this.id = id
    this.fence = fence
    this.attempt = attempt
    this.idempotencyKey = id
    this.#call = call
    this.#steps = new Map(Object.entries(JSON.parse(steps)))
    const values = [...this.#name, String(leaseMs)]
    const renew = async (): Promise<boolean> => {
      const [row] = await call.database.sendPart(renewClaim, values)
      return row?.state === 'held'
    }
    this.#lease = new Lease(renew, leaseMs, sinceAt, (how) => call.lost(fence, how))
  }

  get signal(): AbortSignal {
    return this.#lease.signal
  }

  get #name(): [string, string, string] {
    const { scope, key } = this.#call.spec
    return [scope, key, String(this.fence)]
  }

  async step<T>(name: string, fn: (context: StepContext) => Promise<T> | T): Promise<Stored<T>> {
    checkKey('name', name)
    const known = this.#steps.get(name)
    if (known !== undefined) return readStep(known) as Stored<T>
    this.signal.throwIfAborted()
    const value = await fn({ idempotencyKey: keyOf(this.id, name), signal: this.signal })
    const text = this.#writeStep(name, value)
    const [row] = await sendSurely(this.#call, stepClaim, () => [...this.#name, name, text])
    if (row?.state !== 'held') {
      this.#lease.lose('step')
      throw this.signal.reason
    }
    this.#steps.set(name, text)
    return readStep(text) as Stored<T>
  }

  /** The work of the step is done: what cannot be kept of it must not make it be done again. */
  #writeStep(name: string, value: unknown): string {
    try {
      const text = value === undefined ? '' : toJson(`step "${name}"`, value)
      const bytes = [...this.#steps.values(), text].reduce((sum, one) => sum + Buffer.byteLength(one), 0)
      if (bytes <= MAX_JSON_BYTES) return text
      throw new InvalidInputError(
        `step "${name}"`,
        `must be at most ${MAX_JSON_BYTES} bytes with all steps before it, and is ${bytes}`,
      )
    } catch (error) {
      throw new PermanentError(
        `A step is done, but its outcome cannot be kept: ${(error as Error).message}`,
        {
          cause: error,
        },
      )
    }
  }

  /** Stores what came of it; what is there in the end, by whomever. */
  async finish(
    status: 'active' | 'failed',
    outcome: string | null,
  ): Promise<{ isOurs: boolean; row: TextRow }> {
    const { keepMs } = this.#call.spec
    try {
      const values = [...this.#name, status, outcome, keepMs, 'false']
      const [row = {}] = await sendSurely(this.#call, finishClaim, () => values)
      return { isOurs: row.state === 'stored', row }
    } catch (error) {
      this.#call.emit('dibs:once.not-stored', { error })
      throw new OutcomeNotStoredError(this.#call.subject, this.id, { cause: error })
    } finally {
      this.#lease.stop()
    }
  }

  /**
   * Ends the attempt without an outcome: released (null), or as if its lease had so long to go. If that cannot be said, the
   * lease runs out by itself.
   */
  async end(restMs: number | null): Promise<void> {
    this.#lease.stop()
    await sendSurely(this.#call, endClaim, () => [
      ...this.#name,
      restMs === null ? null : String(restMs),
    ]).catch(() => {})
  }
}

const readStep = (text: string): unknown => (text === '' ? undefined : JSON.parse(text))
