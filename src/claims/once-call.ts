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

/** A wait that is not meant to be one: long enough not to be taken for one when the server is merely slow. */
const AT_ONCE_MS = 10

/** Shorter than this, nobody has waited for anybody. */
const NOTICED_MS = 20

/** When to come back to a key on which another works: its work is mostly short, however long its lease. */
const RETRY_MS = 1_000

/** One call of `once`, from its first look to its answer. */
export class OnceCall {
  readonly database: Database
  readonly spec: ReadSpec
  readonly id: string = randomUUID()
  readonly subject: string
  /** The error by which this call was refused, if another caller works on the key. */
  refusal: InProgressError | BusyError | undefined
  readonly #startedAt = performance.now()
  #tries = 0
  #asks = 0

  constructor(database: Database, spec: ReadSpec) {
    this.database = database
    this.spec = spec
    this.subject = `key "${spec.key}" ${nameScope(spec.scope)}`
  }

  /** No other call has it, so that this one knows its own claim again if the answer was lost. */
  get holder(): string {
    return `${THIS_PROCESS}:${this.id}`
  }

  /** What is left of the time to wait. */
  get leftMs(): number {
    return Math.max(0, this.spec.waitMs - (performance.now() - this.#startedAt))
  }

  /** It is this call's turn among those of this process. */
  noteTurn(): void {
    const waitedMs = Math.round(performance.now() - this.#startedAt)
    if (waitedMs >= NOTICED_MS) this.emit('dibs:once.waited', { waitedMs, retries: 0 })
  }

  /** How long the server may let us wait. */
  #waitMs(mostMs = Number.POSITIVE_INFINITY): string {
    const leftMs = this.#asks++ === 0 ? this.spec.waitMs : this.leftMs
    return String(Math.ceil(Math.max(AT_ONCE_MS, Math.min(leftMs, mostMs))))
  }

  /** How a joined claim begins. Who is not to wait cannot see whose request is in the way, unless it is announced. */
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
    // Less than it may let a statement run, which would fail in another way.
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

  /**
   * What is to be done: `run` it, give the `answer` that is there, or look again (`wait`) while there is time. Everything
   * else is thrown.
   */
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

  /** Another works on it, and there is no time to wait for that. */
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

  /** How long to wait before another look at a claim that is held: soon at first, for most work is short. */
  get pauseMs(): number {
    return Math.min(this.leftMs, 250, 20 * 1.5 ** Math.min(this.#tries, 10))
  }

  /** The outcome as it is stored. */
  async answer(claim: ToldClaim, replayed: boolean): Promise<OnceResult<unknown>> {
    const { attempt, id, status, hasOutcome, outcome, completedAt } = claim
    if (replayed && claim.state === 'replayed') this.emit('dibs:once.replayed', { attempt })
    if (status === 'failed') throw restoreFailure(outcome)
    const value = await parseStored(this.spec.result, hasOutcome ? outcome : undefined, this.subject)
    return { value, replayed, attempt, completedAt: dateFromMicros(String(completedAt)), id }
  }

  /** The outcome that this call itself has stored, read as later callers will read it. */
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

/** How a claim that was given up is told from one that was refused. */
export const GIVEN_UP = 'AttemptsExhausted'

const explained = new Map<number, string>()

/** The outcome of a claim that was given up. Written once for each number: every call brings it along. */
export function explainGivingUp(attempts: number): string {
  const known = explained.get(attempts)
  if (known !== undefined) return known
  const times = attempts === 1 ? '1 attempt' : `${attempts} attempts`
  const message = `Given up after ${times} without a recorded outcome (crash or expired lease).`
  const text = JSON.stringify({ name: GIVEN_UP, message } satisfies StoredFailure)
  explained.set(attempts, text)
  return text
}
