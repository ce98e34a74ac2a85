import { InvalidInputError, OutcomeNotStoredError } from '../../errors.js'
import type { Database } from '../../postgres/database.js'
import { toOutcome } from '../../postgres/json.js'
import type { Statement } from '../../postgres/statement.js'
import type { TextValue } from '../../postgres/text-values.js'
import { newHolder } from '../../postgres/this-process.js'
import type { Claim } from '../claim.js'
import type { ClaimRequest, Ending, LeasedCall, Outcome } from '../claim-call.js'
import type { ClaimResult } from '../claim-result.js'
import { beginClaim, renewClaim } from '../claim-statements.js'
import { HeldClaim } from '../held-claim.js'
import { type HeldClaims, type LeasedWork, runLeased } from '../leased-run.js'
import { givenUpOutcome, OnceCall } from './once-call.js'
import type { AmbiguousVerdict, LeasedOnceCallSpec, OnceResult } from './once-spec.js'

export type LeasedHandler = (claim: Claim) => Promise<unknown>

/** The name and the input of an operation, stored with its claim. */
export interface OperationInput {
  readonly name: string
  readonly input: string
}

/** A call of `once` under a lease. */
export class LeasedOnceCall extends OnceCall implements LeasedCall<ClaimResult, OnceResult<unknown>> {
  declare readonly spec: LeasedOnceCallSpec
  readonly #operation: OperationInput | undefined

  constructor(database: Database, spec: LeasedOnceCallSpec, operation?: OperationInput) {
    super(database, spec)
    this.#operation = operation
  }

  get leaseMs(): number {
    return this.spec.leaseMs
  }

  get holdsAmbiguous(): boolean {
    return this.spec.onAmbiguous !== 'retry'
  }

  override get beginStatement(): Statement {
    return beginClaim
  }

  override beginValues(): TextValue[] {
    const { scope, key, fingerprint, keepMs, leaseMs, maxAttempts, onAmbiguous } = this.spec
    // A wait below the statement timeout, which would fail with another error.
    const { statementTimeoutMs } = this.database
    const waitMs = this.serverWaitMs((statementTimeoutMs || Number.POSITIVE_INFINITY) * 0.9)
    const { name = null, input = null } = this.#operation ?? {}
    return [
      ...[scope, key, this.id, newHolder(this.id), fingerprint, String(leaseMs), keepMs, waitMs],
      ...[String(onAmbiguous === 'hold'), String(maxAttempts), name, input, givenUpOutcome(maxAttempts)],
    ]
  }

  /** `leftMs` is known for a claim that has waited, or that was found again after its answer was lost. It counts from the end of the statement. */
  leaseStart({ leftMs }: ClaimResult, sentAt: number, waitedMs: number): number {
    return leftMs === null ? sentAt : sentAt + Math.max(0, waitedMs - 1) - (this.leaseMs - leftMs)
  }

  renewal({ fence }: ClaimResult, waitMs: number): ClaimRequest {
    const { scope, key, leaseMs } = this.spec
    return { statement: renewClaim, values: [scope, key, String(fence), String(waitMs), String(leaseMs)] }
  }

  /** Does not parse the outcome yet: the work is done, so the outcome is stored even if the schema refuses it. */
  override async readOutcome(value: unknown): Promise<Outcome> {
    return { json: value === undefined ? null : toOutcome('outcome', value), value }
  }

  override async answerOwn(
    granted: ClaimResult,
    { json }: Outcome,
    completedAt: number | null,
  ): Promise<OnceResult<unknown>> {
    const value = await this.parse(json === null ? undefined : JSON.parse(json))
    return super.answerOwn(granted, { json, value }, completedAt)
  }

  explainUnrecorded({ id }: ClaimResult, { kind }: Ending, error: unknown): Error | undefined {
    if (kind === 'released') return undefined
    this.emit('dibs:once.not-stored', { error })
    return new OutcomeNotStoredError(this.subject, id, { cause: error })
  }

  run(handler: LeasedHandler): Promise<OnceResult<unknown>> {
    return runLeased(this, (held, granted) =>
      this.prepareWork(held, granted, granted.state === 'taken over', handler),
    )
  }

  /** @param isAmbiguous true if the previous attempt has no recorded outcome */
  prepareWork(
    held: HeldClaims<ClaimResult>,
    granted: ClaimResult,
    isAmbiguous: boolean,
    handler: LeasedHandler,
  ): LeasedWork {
    const claim = new HeldClaim(this, granted, held)
    const run = () => handler(claim)
    return isAmbiguous ? { run, findOutcome: () => this.#decideAmbiguous(claim) } : { run }
  }

  async #decideAmbiguous(claim: Claim): Promise<{ readonly outcome: unknown } | undefined> {
    const { onAmbiguous } = this.spec
    if (typeof onAmbiguous !== 'function') return undefined
    const verdict: AmbiguousVerdict = await onAmbiguous(claim)
    if (verdict === 'retry') return undefined
    if (verdict === 'hold') throw this.ambiguous(claim.id, claim.attempt - 1)
    if (typeof verdict === 'object' && verdict !== null && 'outcome' in verdict) return verdict
    throw new InvalidInputError('onAmbiguous', "must say 'retry', 'hold' or { outcome }")
  }
}
