import { randomUUID } from 'node:crypto'
import {
  AmbiguousOutcomeError,
  BusyError,
  FenceLostError,
  FingerprintMismatchError,
  InProgressError,
  InvalidInputError,
} from '../../errors.js'
import type { Database } from '../../postgres/database.js'
import { type ClaimEventName, type DibsEvents, emit, isHeard } from '../../postgres/events.js'
import { toOutcome } from '../../postgres/json.js'
import { addressOf, hashKey, nameScope, templateOf } from '../../postgres/key.js'
import { parseStored } from '../../postgres/standard-schema.js'
import type { Statement } from '../../postgres/statement.js'
import { isTerminalError, restoreFailure, type StoredFailure } from '../../postgres/stored-failure.js'
import { dateFromMicros, type TextRow, type TextValue } from '../../postgres/text-values.js'
import { readHeld } from '../../postgres/this-process.js'
import type {
  ClaimCall,
  ClaimRequest,
  Decision,
  Ending,
  EndResult,
  LossKind,
  Outcome,
} from '../claim-call.js'
import { type ClaimResult, readResult } from '../claim-result.js'
import { beginAnnouncedClaim, beginJoinedClaim, endClaim, finishClaim } from '../claim-statements.js'
import type { OnceCallSpec, OnceResult } from './once-spec.js'

/** Minimum wait inside the server, also for calls that should not wait. A shorter limit could expire merely because the server is slow. */
const AT_ONCE_MS = 10

/** Shorter waits are not reported, because the call has not waited for another caller. */
const NOTICED_MS = 20

/** Suggested retry delay for a key that another caller works on. Most work is short, even under a long lease. */
const RETRY_MS = 1_000

/** A single call of `once`, from its first attempt to claim the key to its result. */
export class OnceCall implements ClaimCall<ClaimResult, OnceResult<unknown>> {
  readonly calledAs = 'dibs.once'
  readonly storesOutcome = true
  readonly mayKeepFailure = true
  readonly usesSavepoint = false
  readonly database: Database
  readonly spec: OnceCallSpec
  readonly id: string = randomUUID()
  readonly subject: string
  /** The error that refused this call, if another caller works on the key. */
  refusal: InProgressError | BusyError | undefined
  readonly #startedAt = performance.now()
  #tries = 0
  #requests = 0

  constructor(database: Database, spec: OnceCallSpec) {
    this.database = database
    this.spec = spec
    this.subject = `key "${spec.key}" ${nameScope(spec.scope)}`
  }

  get queueKey(): string | undefined {
    const { scope, key } = this.spec
    return JSON.stringify([scope, key])
  }

  /** The remaining time to wait. */
  get leftMs(): number {
    return Math.max(0, this.spec.waitMs - (performance.now() - this.#startedAt))
  }

  emitQueued(): void {
    const waitedMs = Math.round(performance.now() - this.#startedAt)
    if (waitedMs >= NOTICED_MS) this.emit('dibs:once.waited', { waitedMs, retries: 0 })
  }

  /** The maximum time that the server may let this call wait. */
  protected serverWaitMs(maxMs = Number.POSITIVE_INFINITY): string {
    const leftMs = this.#requests++ === 0 ? this.spec.waitMs : this.leftMs
    return String(Math.ceil(Math.max(AT_ONCE_MS, Math.min(leftMs, maxMs))))
  }

  /** A call with a fingerprint that does not wait announces its claim, so that other calls can compare fingerprints before its transaction commits. */
  get beginStatement(): Statement {
    const { fingerprint, waitMs } = this.spec
    return fingerprint !== null && waitMs === 0 ? beginAnnouncedClaim : beginJoinedClaim
  }

  beginValues(): TextValue[] {
    const { scope, key, fingerprint, keepMs } = this.spec
    return [scope, key, this.id, fingerprint, keepMs, this.serverWaitMs()]
  }

  judge(row: TextRow | undefined): Decision<ClaimResult> {
    return this.judgeResult(readResult(row), Number(row?.waited))
  }

  /** Throws the refusal of this call. */
  judgeResult(claim: ClaimResult, waitedMs: number): Decision<ClaimResult> {
    if (waitedMs >= NOTICED_MS) this.emit('dibs:once.waited', { waitedMs, retries: this.#tries })
    this.#tries++
    const { attempt, id, lost } = claim
    switch (claim.state) {
      case 'taken over':
        this.emit('dibs:once.taken-over', { attempt, lost })
        return { todo: 'run', granted: claim }
      case 'claimed':
        return { todo: 'run', granted: claim }
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
        if (claim.state === 'in progress' && this.leftMs > 0) return { todo: 'wait', pauseMs: this.#pauseMs }
        throw this.refuse(claim)
    }
  }

  /** Makes the error of this call: another caller works on the key, and no time to wait is left. */
  refuse(claim?: ClaimResult): InProgressError | BusyError {
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
  get #pauseMs(): number {
    return Math.min(this.leftMs, 250, 20 * 1.5 ** Math.min(this.#tries, 10))
  }

  claimsOf(granted: ClaimResult): readonly ClaimResult[] {
    return [granted]
  }

  /** Also parses the outcome: an outcome that the schema refuses must not be committed. */
  async readOutcome(value: unknown): Promise<Outcome> {
    const json = value === undefined ? null : toOutcome('outcome', value)
    return { json, value: await this.parse(json === null ? undefined : JSON.parse(json)) }
  }

  failureKind(error: unknown): 'failed' | undefined {
    // guard: once.final-error
    if (isTerminalError(error, this.spec.isTerminal)) return 'failed'
    return undefined
  }

  end({ fence }: ClaimResult, ending: Ending, waitMs: string | null, mustHold: boolean): ClaimRequest {
    const { scope, key, keepMs } = this.spec
    const { kind, json, retryInMs = null, isVoid = false } = ending
    const claim = [scope, key, String(fence), waitMs]
    if (kind === 'released') {
      const retryIn = retryInMs === null ? null : String(retryInMs)
      return { statement: endClaim, values: [...claim, retryIn, keepMs, json, String(isVoid)] }
    }
    const status = kind === 'done' ? 'active' : 'failed'
    return { statement: finishClaim, values: [...claim, status, json, keepMs, String(mustHold)] }
  }

  async readEnd(row: TextRow | undefined): Promise<EndResult> {
    const claim = readResult(row)
    const { state, status, completedAt } = claim
    if (state === 'stored') return { isRecorded: true, completedAt }
    return { isRecorded: false, other: status === 'active' || status === 'failed' ? claim : undefined }
  }

  async answerStored(claim: ClaimResult): Promise<OnceResult<unknown>> {
    const { attempt, id, status, hasOutcome, outcome, completedAt } = claim
    if (claim.state === 'replayed') this.emit('dibs:once.replayed', { attempt })
    if (status === 'failed') throw restoreFailure(outcome)
    const value = await this.parse(hasOutcome ? outcome : undefined)
    return { value, replayed: true, attempt, completedAt: dateFromMicros(String(completedAt)), id }
  }

  async answerOwn(
    { id, attempt }: ClaimResult,
    { value }: Outcome,
    completedAt: number | null,
  ): Promise<OnceResult<unknown>> {
    return { value, replayed: false, attempt, completedAt: dateFromMicros(String(completedAt)), id }
  }

  /** Parses an outcome as all callers get it. */
  protected parse(stored: unknown): Promise<unknown> {
    return parseStored(this.spec.result, stored, this.subject)
  }

  ambiguous(id: string, attempt: number): AmbiguousOutcomeError {
    const { scope, key } = this.spec
    return new AmbiguousOutcomeError(this.subject, id, attempt, { address: addressOf(scope, key) })
  }

  lost(how: LossKind, granted?: ClaimResult): FenceLostError {
    const fence = granted?.fence ?? 0
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
export function givenUpOutcome(attempts: number): string {
  const known = explained.get(attempts)
  if (known !== undefined) return known
  const times = attempts === 1 ? '1 attempt' : `${attempts} attempts`
  const message = `Given up after ${times} without a recorded outcome (crash or expired lease).`
  const text = JSON.stringify({ name: GIVEN_UP, message } satisfies StoredFailure)
  explained.set(attempts, text)
  return text
}
