import { randomUUID } from 'node:crypto'
import { hostname } from 'node:os'
import {
  AmbiguousOutcomeError,
  BusyError,
  FenceLostError,
  FingerprintMismatchError,
  InProgressError,
} from '../errors.js'
import type { Database } from '../postgres/database.js'
import { type ClaimEventName, type DibsEvents, emit } from '../postgres/events.js'
import { dateFromMicros, type TextRow, type TextValue } from '../postgres/text-values.js'
import { type ClaimRow, readClaim } from './claim-row.js'
import { hashKey, templateOf } from './key.js'
import type { LossKind } from './lease.js'
import type { OnceResult, ReadLeasedSpec, ReadSpec } from './once-spec.js'
import { parseStored } from './standard-schema.js'
import { restoreFailure, storeFailure } from './stored-failure.js'

/** What `claim_begin` said. */
export interface Begun {
  readonly state:
    | 'claimed'
    | 'taken over'
    | 'replayed'
    | 'gave up'
    | 'mismatch'
    | 'in progress'
    | 'ambiguous'
    | 'busy'
  readonly claim: ClaimRow
  readonly leftMs: number
  readonly waitedMs: number
}

/** A wait that is not meant to be one: long enough not to be taken for one when the server is merely slow. */
const AT_ONCE_MS = 10

/** Shorter than this, nobody has waited for anybody. */
const NOTICED_MS = 5

/** One call of `once`, from its first look to its answer. */
export class OnceCall {
  readonly database: Database
  readonly spec: ReadSpec
  readonly id: string = randomUUID()
  /** No other call has it, so that this one knows its own claim again if the answer was lost. */
  readonly holder: string = `${hostname()}:${process.pid}:${randomUUID()}`
  readonly subject: string
  readonly #startedAt = performance.now()
  #tries = 0

  constructor(database: Database, spec: ReadSpec) {
    this.database = database
    this.spec = spec
    this.subject = `key "${spec.key}" in scope "${spec.scope}"`
  }

  /** What is left of the time to wait. */
  get leftMs(): number {
    return Math.max(0, this.spec.waitMs - (performance.now() - this.#startedAt))
  }

  /** The values of `beginClaim`. */
  values(
    lease?: ReadLeasedSpec,
    operation: { name: string; input: string } | undefined = undefined,
  ): TextValue[] {
    const { scope, key, fingerprint, keepMs } = this.spec
    const holds = lease?.onAmbiguous === 'hold'
    const { id, holder } = this
    const leaseMs = lease ? String(lease.leaseMs) : null
    const leftMs = this.#tries === 0 ? this.spec.waitMs : this.leftMs
    const waitMs = String(Math.ceil(Math.max(AT_ONCE_MS, leftMs)))
    const maxLost = lease ? String(lease.maxAttempts) : null
    const gaveUp = lease ? explainGivingUp(lease.maxAttempts) : null
    return [
      ...[scope, key, id, holder, fingerprint, leaseMs, keepMs, waitMs, String(holds), maxLost],
      ...[operation?.name ?? null, operation?.input ?? null, gaveUp],
    ]
  }

  /**
   * What is to be done: `run` it, give the `answer` that is there, or look again (`wait`) while there is time. Everything
   * else is thrown.
   */
  judge(row: TextRow | undefined): { readonly todo: 'run' | 'answer' | 'wait'; readonly begun: Begun } {
    const begun = readBegun(row)
    const { state, claim, waitedMs } = begun
    this.#tries++
    if (waitedMs >= NOTICED_MS) this.emit('dibs:once.waited', { waitedMs, retries: this.#tries - 1 })
    switch (state) {
      case 'taken over':
        this.emit('dibs:once.taken-over', { attempt: claim.attempt, lost: claim.lost })
        return { todo: 'run', begun }
      case 'claimed':
        return { todo: 'run', begun }
      case 'gave up':
        this.emit('dibs:once.gave-up', { attempt: claim.attempt })
        return { todo: 'answer', begun }
      case 'replayed':
        if (claim.id !== this.id) this.emit('dibs:once.replayed', { attempt: claim.attempt })
        return { todo: 'answer', begun }
      case 'mismatch':
        this.emit('dibs:once.mismatch', {})
        throw new FingerprintMismatchError(this.subject, claim.id)
      case 'ambiguous':
        this.emit('dibs:once.ambiguous', { attempt: claim.attempt })
        throw new AmbiguousOutcomeError(this.subject, claim.id, claim.attempt)
      default:
        if (state === 'in progress' && this.leftMs > 0) return { todo: 'wait', begun }
        throw this.#refuse(begun)
    }
  }

  #refuse({ state, claim, leftMs }: Begun): Error {
    const waitedMs = performance.now() - this.#startedAt
    const retryAfterMs = state === 'busy' ? 1_000 : leftMs
    this.emit('dibs:once.conflict', { retryAfterMs, waitedMs, retries: this.#tries - 1 })
    if (this.spec.waitMs > 0)
      return new BusyError(`another caller that works on ${this.subject}`, waitedMs, retryAfterMs)
    return new InProgressError(this.subject, retryAfterMs, state === 'busy' ? undefined : claim.id)
  }

  /** How long to wait before another look at a claim that is held: soon at first, for most work is short. */
  get pauseMs(): number {
    return Math.min(this.leftMs, 250, 20 * 1.5 ** Math.min(this.#tries, 10))
  }

  /** What later callers get, and the first one too: the outcome as it is stored. */
  async answer(claim: ClaimRow, replayed: boolean): Promise<OnceResult<unknown>> {
    const { attempt, id, status, outcome } = claim
    if (status === 'failed') throw restoreFailure(outcome ?? '{}')
    const stored: unknown = outcome === null ? undefined : JSON.parse(outcome)
    const value = await parseStored(this.spec.result, stored, this.subject)
    return { value, replayed, attempt, completedAt: dateFromMicros(`${claim.completedAt}`), id }
  }

  lost(fence: number, how: LossKind): FenceLostError {
    this.emit('dibs:once.lost', { fence, how })
    return new FenceLostError(this.subject, fence)
  }

  emit<N extends ClaimEventName>(
    name: N,
    fields: Omit<DibsEvents[N], keyof DibsEvents['dibs:once.mismatch']>,
  ): void {
    const { scope, key, requestId } = this.spec
    const { origin } = this.database
    const payload = {
      ...origin,
      template: templateOf(scope),
      keyHash: hashKey(`${scope}\n${key}`),
      requestId,
      ...fields,
    }
    emit(name, payload as unknown as DibsEvents[N])
  }
}

export function explainGivingUp(attempts: number): string {
  const times = attempts === 1 ? 'an attempt' : `${attempts} attempts`
  const error = new Error(
    `Given up after ${times} that ended without a word: the process died, or lost its lease.`,
  )
  return storeFailure(Object.assign(error, { name: 'AttemptsExhausted' }))
}

function readBegun(row: TextRow | undefined): Begun {
  if (!row) throw new TypeError('claim_begin gave no row')
  const { state, left_ms, waited_ms } = row
  return {
    state: state as Begun['state'],
    claim: readClaim(row),
    leftMs: Number(left_ms),
    waitedMs: Number(waited_ms),
  }
}
