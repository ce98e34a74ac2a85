import { BusyError, FenceLostError, InvalidInputError } from '../../errors.js'
import type { Database } from '../../postgres/database.js'
import { emit } from '../../postgres/events.js'
import { isConflict } from '../../postgres/fault.js'
import { toOutcome } from '../../postgres/json.js'
import { SHORT_RETRY_MS } from '../../postgres/or-busy.js'
import type { TextRow, TextValue } from '../../postgres/text-values.js'
import type {
  ClaimCall,
  ClaimRequest,
  Decision,
  Ending,
  EndResult,
  LossKind,
  Outcome,
} from '../claim-call.js'
import type { ClaimResult } from '../claim-result.js'
import type { OnceCall } from '../once/once-call.js'
import type { AnyClaim } from './acquire-claims.js'
import { readRefusal, readStoredRefusal } from './acquire-refusal.js'
import { AcquireRequest } from './acquire-request.js'
import type { AcquireResult, ItemResult } from './acquire-result.js'
import { acquireClaims, endAcquired } from './acquire-statements.js'

/** How often a call may correct the time for which it sends the slots of a cron expression. */
const MAX_MOVES = 3

export type CalledAs = 'dibs.acquire' | 'dibs.tryAcquire' | 'dibs.singleton' | 'dibs.trySingleton'

export interface AcquireSettings {
  /** How long to wait for other transactions to decide. */
  readonly waitMs: number
  /** How long to wait for the first claim, if that is a slot. An idempotency key has its own `waitMs`. */
  readonly firstWaitMs: number
  /** Null: joined. */
  readonly leaseMs: number | null
  readonly calledAs: CalledAs
}

/** A single call of `acquire` or `singleton`, from its first attempt to claim to its result. */
export class AcquireCall implements ClaimCall<AcquireResult, unknown> {
  readonly database: Database
  readonly calledAs: CalledAs
  readonly usesSavepoint = true
  readonly beginStatement = acquireClaims
  readonly request: AcquireRequest
  readonly #waitMs: number
  readonly #firstWaitMs: number
  readonly #startedAt = performance.now()
  #sent = 0
  #tries = 0
  #moves = 0
  /** When the wait for the claims behind the first began. */
  #othersSince: number | undefined
  #refusal: Error | undefined

  constructor(database: Database, claims: readonly AnyClaim[], settings: AcquireSettings) {
    this.database = database
    this.calledAs = settings.calledAs
    this.request = new AcquireRequest(database, claims, settings.leaseMs)
    this.#waitMs = settings.waitMs
    this.#firstWaitMs = settings.firstWaitMs
  }

  get #once(): OnceCall | undefined {
    return this.request.once
  }

  get subject(): string {
    return this.request.subject
  }

  /** The error that refused this call. An error that its function throws is not a refusal. */
  get refusal(): Error | undefined {
    return this.#refusal ?? this.#once?.refusal
  }

  get queueKey(): string | undefined {
    return this.request.queueKey
  }

  get leftMs(): number {
    return Math.max(0, (this.#once?.spec.waitMs ?? this.#firstWaitMs) - this.#waitedMs)
  }

  get #waitedMs(): number {
    return performance.now() - this.#startedAt
  }

  get storesOutcome(): boolean {
    return this.request.storesOutcome
  }

  get mayKeepFailure(): boolean {
    return this.#once !== undefined || this.request.keepsFailure
  }

  beginValues(): TextValue[] {
    const isRepeated = this.#sent++ > 0
    return this.request.beginValues(isRepeated ? this.leftMs : this.#firstWaitMs, isRepeated)
  }

  judge(row: TextRow | undefined): Decision<AcquireResult> {
    const result: AcquireResult = JSON.parse(`${row?.result}`)
    if (this.#once && result.once && result.state !== 'refused') {
      const decision = this.#once.judgeResult(result.once, Number(row?.waited))
      if (decision.todo !== 'run') return decision
    }
    this.#tries++
    if (result.state === 'granted') return { todo: 'run', granted: result }
    const withoutSlot = result.results.find(({ state }) => state === 'no slot')
    if (withoutSlot) return this.#moveTo(withoutSlot)
    if (result.results.some(({ state }) => state === 'nested'))
      throw this.#calledAsSingleton
        ? new InvalidInputError('scope', 'is of a slot that this very transaction has claimed before')
        : new InvalidInputError('claims', 'hold a slot that this very transaction has claimed before')
    const isUndecided = result.results.every(({ granted, isBusy }) => granted || isBusy)
    const { leftMs, waitedMs } = this.#measureWait(result)
    if (isUndecided && leftMs > 0) return { todo: 'wait', pauseMs: Math.min(leftMs, this.#pauseMs) } // guard: acquire.wait-bound
    return this.#refuseResult(result, waitedMs)
  }

  #refuseResult(result: AcquireResult, waitedMs: number): Decision<AcquireResult> {
    const refusal = readRefusal(this.request.items(), result, Math.round(waitedMs), false)
    emit('dibs:acquire.refused', {
      ...this.database.origin,
      kinds: refusal.failures.map(({ kind }) => kind),
      isFinal: result.isFinal,
      waitedMs: Math.round(this.#waitedMs),
      retries: this.#tries - 1,
    })
    const error = (this.#calledAsSingleton && refusal.failures[0]?.error) || refusal
    const claims = result.results.flatMap(({ claim }) => claim ?? [])
    const isStored = result.isFinal && this.#once !== undefined
    return { todo: 'refuse', error: this.#refuseWith(error), isStored, claims }
  }

  get #calledAsSingleton(): boolean {
    return this.calledAs === 'dibs.singleton' || this.calledAs === 'dibs.trySingleton'
  }

  /** A first slot has its own waiting time. The time for the other claims starts when the call has the first. */
  #measureWait(result: AcquireResult): { readonly leftMs: number; readonly waitedMs: number } {
    const waitedMs = this.#waitedMs
    if (result.results[0]?.isBusy && !this.#once && this.queueKey !== undefined)
      return { leftMs: Math.max(this.#firstWaitMs, this.#waitMs) - waitedMs, waitedMs }
    this.#othersSince ??= performance.now() - result.tookMs
    const othersMs = performance.now() - this.#othersSince
    return { leftMs: this.#waitMs - othersMs, waitedMs: othersMs }
  }

  /** The clocks of the database and of this process differ: sends the slots around the time of the database. */
  #moveTo({ now }: ItemResult): Decision<AcquireResult> {
    if (++this.#moves > MAX_MOVES)
      throw new InvalidInputError(
        'per',
        'has no period at this time: its slots are all before it, or all after it',
      )
    this.request.setTime(Number(now) / 1_000)
    return { todo: 'wait', pauseMs: 0 }
  }

  /** At most 50 to 100 ms, with jitter so that waiting callers do not return together. Shorter at first, because most transactions are short. */
  get #pauseMs(): number {
    const maxMs = Math.min(100, 10 * 2 ** this.#tries)
    return maxMs * (0.5 + Math.random() / 2)
  }

  emitQueued(): void {
    this.#once?.emitQueued()
  }

  refuse(): Error {
    return (
      this.#once?.refuse() ?? this.#refuseWith(new BusyError(this.subject, this.#waitedMs, SHORT_RETRY_MS))
    )
  }

  #refuseWith(error: Error): Error {
    this.#refusal = error
    return error
  }

  claimsOf({ once, results }: AcquireResult): readonly ClaimResult[] {
    return [...(once ? [once] : []), ...results.flatMap(({ claim }) => claim ?? [])]
  }

  /** Without an idempotency key and a slot, the value stays as it is. */
  async readOutcome(value: unknown): Promise<Outcome> {
    if (!this.storesOutcome) return { value, json: null }
    const json = value === undefined ? null : toOutcome('outcome', value)
    return { value: json === null ? undefined : JSON.parse(json), json }
  }

  failureKind(error: unknown): 'failed' | 'released' | undefined {
    // After a conflict, the transaction is repeated.
    const isKept = this.request.keepsFailure && !isConflict(error)
    return this.#once?.failureKind(error) ?? (isKept ? 'released' : undefined)
  }

  end(granted: AcquireResult, ending: Ending, waitMs: string | null, mustHold: boolean): ClaimRequest {
    const holder = this.request.isLeased ? this.request.holder : null
    const isDone = ending.kind === 'done' || ending.kind === 'unstorable'
    const heldGrants = this.request.heldGrants(granted, ending)
    return { statement: endAcquired, values: [heldGrants, holder, String(isDone), waitMs, String(mustHold)] }
  }

  async readEnd(row: TextRow | undefined): Promise<EndResult> {
    const { state, completedAt } = JSON.parse(`${row?.result}`)
    return { isRecorded: state === 'ended', completedAt }
  }

  async answerOwn(_granted: AcquireResult, { value }: Outcome): Promise<unknown> {
    return value
  }

  async answerStored(claim: ClaimResult): Promise<unknown> {
    const refusal = readStoredRefusal(claim)
    if (refusal) throw this.#refuseWith(refusal)
    return (await this.#once?.answerStored(claim))?.value
  }

  lost(how: LossKind, granted?: AcquireResult): FenceLostError {
    return (
      this.#once?.lost(how, granted?.once ?? undefined) ??
      new FenceLostError(this.subject, 0, { isLate: how === 'deadline' })
    )
  }
}
