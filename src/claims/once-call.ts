import { randomUUID } from 'node:crypto'
import {
  AmbiguousOutcomeError,
  BusyError,
  FenceLostError,
  FingerprintMismatchError,
  InProgressError,
  InvalidInputError,
} from '../errors.js'
import type { Database } from '../postgres/database.js'
import { type ClaimEventName, type DibsEvents, emit, isHeard } from '../postgres/events.js'
import { addressOf, hashKey, nameScope, templateOf } from '../postgres/key.js'
import { parseStored } from '../postgres/standard-schema.js'
import type { Statement } from '../postgres/statement.js'
import { restoreFailure, type StoredFailure } from '../postgres/stored-failure.js'
import { dateFromMicros, type TextRow, type TextValue } from '../postgres/text-values.js'
import { readHeld, THIS_PROCESS } from '../postgres/this-process.js'
import { beginAnnouncedClaim, beginJoinedClaim } from './claim-statements.js'
import type { LossKind } from './lease.js'
import type { OnceResult, ReadLeasedSpec, ReadSpec } from './once-spec.js'
import { readTold, type ToldClaim } from './told-claim.js'

/** Minimum wait inside the server, also for calls that should not wait. A shorter limit could expire merely because the server is slow. */
const AT_ONCE_MS = 10

/** Shorter waits are not reported, because the call has not waited for another caller. */
const NOTICED_MS = 20

/** Suggested retry delay for a key that another caller works on. Most work is short, even under a long lease. */
const RETRY_MS = 1_000

/** A single call of `once`, from its first attempt to claim the key to its result. */
export class OnceCall {
  readonly database: Database
  readonly spec: ReadSpec
  readonly id: string = randomUUID()
  readonly subject: string
  /** The error that refused this call, if another caller works on the key. */
  refusal: InProgressError | BusyError | undefined
  readonly #startedAt = performance.now()
  #tries = 0
  #asks = 0

  constructor(database: Database, spec: ReadSpec) {
    this.database = database
    this.spec = spec
    this.subject = `key "${spec.key}" ${nameScope(spec.scope)}`
  }

  /** Unique for each call, so that a call recognizes its own claim if an answer of the server was lost. */
  get holder(): string {
    return `${THIS_PROCESS}:${this.id}`
  }

  /** The remaining time to wait. */
  get leftMs(): number {
    return Math.max(0, this.spec.waitMs - (performance.now() - this.#startedAt))
  }

  /** Reports how long this call waited for its turn among the calls of this process. */
  noteTurn(): void {
    const waitedMs = Math.round(performance.now() - this.#startedAt)
    if (waitedMs >= NOTICED_MS) this.emit('dibs:once.waited', { waitedMs, retries: 0 })
  }

  /** The maximum time that the server may let this call wait. */
  #waitMs(mostMs = Number.POSITIVE_INFINITY): string {
    const leftMs = this.#asks++ === 0 ? this.spec.waitMs : this.leftMs
    return String(Math.ceil(Math.max(AT_ONCE_MS, Math.min(leftMs, mostMs))))
  }

  /** The statement that begins a joined claim. A call that does not wait cannot see which request is in its way, unless the claim is announced. */
  get beginJoined(): Statement {
    const { fingerprint, waitMs } = this.spec
    return fingerprint !== null && waitMs === 0 ? beginAnnouncedClaim : beginJoinedClaim
  }

  /** The values of `beginJoined`. */
  joinedValues(): TextValue[] {
    const { scope, key, fingerprint, keepMs } = this.spec
    return [scope, key, this.id, fingerprint, keepMs, this.#waitMs()]
  }

  /** The values of `beginClaim` for a lease. */
  leasedValues(lease: ReadLeasedSpec, operation?: { name: string; input: string }): TextValue[] {
    const { scope, key, fingerprint, keepMs } = this.spec
    const { leaseMs, maxAttempts, onAmbiguous } = lease
    const hold = String(onAmbiguous === 'hold')
    // Stays below the statement timeout, which would fail with another error.
    const { statementTimeoutMs } = this.database
    const waitMs = this.#waitMs((statementTimeoutMs || Number.POSITIVE_INFINITY) * 0.9)
    return [
      ...[scope, key, this.id, this.holder, fingerprint, String(leaseMs), keepMs, waitMs, hold],
      ...[
        String(maxAttempts),
        operation?.name ?? null,
        operation?.input ?? null,
        explainGivingUp(maxAttempts),
      ],
    ]
  }

  /** Decides what to do next: `run` the work, return the stored `answer`, or `wait` and ask again while there is time. Other cases throw. */
  judge(row: TextRow | undefined): { readonly todo: 'run' | 'answer' | 'wait'; readonly claim: ToldClaim } {
    const claim = readTold(row)
    const waitedMs = Number(row?.waited)
    if (waitedMs >= NOTICED_MS) this.emit('dibs:once.waited', { waitedMs, retries: this.#tries })
    this.#tries++
    const { attempt, id, lost } = claim
    switch (claim.state) {
      case 'taken over':
        this.emit('dibs:once.taken-over', { attempt, lost })
        return { todo: 'run', claim }
      case 'claimed':
        return { todo: 'run', claim }
      case 'gave up':
        this.emit('dibs:once.gave-up', { attempt })
        return { todo: 'answer', claim }
      case 'replayed':
        return { todo: 'answer', claim }
      case 'mismatch':
        this.emit('dibs:once.mismatch', {})
        throw new FingerprintMismatchError(this.subject, id)
      case 'ambiguous':
        this.emit('dibs:once.ambiguous', { attempt })
        throw this.ambiguous(id, attempt)
      case 'nested':
        throw new InvalidInputError(
          'key',
          `"${this.spec.key}" is being worked on in this very transaction: \`once\` was called inside itself, or twice at a time`,
        )
      default:
        if (claim.state === 'in progress' && this.leftMs > 0) return { todo: 'wait', claim }
        throw this.refuse(claim)
    }
  }

  /** Refuses this call: another caller works on the key, and no time to wait is left. */
  refuse(claim?: ToldClaim): InProgressError | BusyError {
    const waitedMs = Math.round(performance.now() - this.#startedAt)
    const retryAfterMs = Math.min(RETRY_MS, claim?.leftMs ?? RETRY_MS)
    this.emit('dibs:once.conflict', { retryAfterMs, waitedMs, retries: Math.max(0, this.#tries - 1) })
    const held = readHeld(claim ?? {})
    const inProgress = new InProgressError(this.subject, retryAfterMs, claim?.id, held)
    const subject = `another caller that works on ${this.subject}`
    this.refusal =
      this.spec.waitMs === 0
        ? inProgress
        : new BusyError(subject, waitedMs, retryAfterMs, { ...held, cause: inProgress })
    return this.refusal
  }

  /** The pause before the next try for a held claim. Short at first, because most work is short. */
  get pauseMs(): number {
    return Math.min(this.leftMs, 250, 20 * 1.5 ** Math.min(this.#tries, 10))
  }

  /** Returns the stored outcome, or throws the stored error. */
  async answer(claim: ToldClaim, replayed: boolean): Promise<OnceResult<unknown>> {
    const { attempt, id, status, hasOutcome, outcome, completedAt } = claim
    if (replayed && claim.state === 'replayed') this.emit('dibs:once.replayed', { attempt })
    if (status === 'failed') throw restoreFailure(outcome)
    const value = await parseStored(this.spec.result, hasOutcome ? outcome : undefined, this.subject)
    return { value, replayed, attempt, completedAt: dateFromMicros(String(completedAt)), id }
  }

  /** Returns the outcome that this call stored, parsed as later callers will get it. */
  async answerOwn(
    { id, attempt }: Pick<ToldClaim, 'id' | 'attempt'>,
    outcome: string | null,
    { completedAt }: ToldClaim,
  ): Promise<OnceResult<unknown>> {
    const stored = outcome === null ? undefined : JSON.parse(outcome)
    const value = await parseStored(this.spec.result, stored, this.subject)
    return { value, replayed: false, attempt, completedAt: dateFromMicros(String(completedAt)), id }
  }

  ambiguous(id: string, attempt: number): AmbiguousOutcomeError {
    const { scope, key } = this.spec
    return new AmbiguousOutcomeError(this.subject, id, attempt, { address: addressOf(scope, key) })
  }

  lost(fence: number, how: LossKind): FenceLostError {
    this.emit('dibs:once.lost', { fence, how })
    return new FenceLostError(this.subject, fence, { isLate: how === 'deadline' })
  }

  emit<N extends ClaimEventName>(
    name: N,
    fields: Omit<DibsEvents[N], keyof DibsEvents['dibs:once.mismatch']>,
  ): void {
    if (!isHeard(name)) return
    const { scope, key, requestId } = this.spec
    const payload = {
      ...this.database.origin,
      template: templateOf(scope),
      keyHash: hashKey(`${scope}\n${key}`),
      requestId,
      ...fields,
    }
    emit(name, payload as unknown as DibsEvents[N])
  }
}

/** The stored error name of a claim that was given up. The name distinguishes it from a claim that was refused. */
export const GIVEN_UP = 'AttemptsExhausted'

const explained = new Map<number, string>()

/** The outcome of a claim that was given up, as JSON. Cached for each number of attempts, because every call sends it. */
export function explainGivingUp(attempts: number): string {
  const known = explained.get(attempts)
  if (known !== undefined) return known
  const times = attempts === 1 ? '1 attempt' : `${attempts} attempts`
  const message = `Given up after ${times} without a recorded outcome (crash or expired lease).`
  const text = JSON.stringify({ name: GIVEN_UP, message } satisfies StoredFailure)
  explained.set(attempts, text)
  return text
}
