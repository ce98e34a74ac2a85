import { randomUUID } from 'node:crypto'
import type { Database } from '../../postgres/database.js'
import type { TextValue } from '../../postgres/text-values.js'
import { newHolder } from '../../postgres/this-process.js'
import type { Ending } from '../claim-call.js'
import { givenUpOutcome, OnceCall } from '../once/once-call.js'
import { toCallSpec } from '../once/once-spec.js'
import { type AnyClaim, type ClaimKind, OnceClaim } from './acquire-claims.js'
import { checkClaims, kindOf, type SortedClaim, sortClaims } from './acquire-kinds.js'
import type { AcquireItem, AcquireResult } from './acquire-result.js'
import { endClaim } from './end-claim.js'

/** Minimum wait inside the server. A shorter limit could expire merely because the server is slow. */
const AT_ONCE_MS = 10

/** The claims of one call of `acquire`: how they are sent to the database, and how its results are read. */
export class AcquireRequest {
  /** The call of the idempotency key. */
  readonly once: OnceCall | undefined
  /** Unique for each call. */
  readonly holder: string
  /** True if an attempt that may have had an effect is not repeated without a decision. */
  readonly holdsAmbiguous: boolean
  readonly #database: Database
  readonly #claims: readonly AnyClaim[]
  /** All claims but the idempotency key, in the order in which all callers lock them. */
  readonly #sorted: readonly SortedClaim[]
  /** Null: joined. */
  readonly #leaseMs: number | null
  readonly #maxAttempts: number
  /** A random id for each claim, by its index. */
  readonly #ids: readonly string[]
  /** The time for which the slots of cron expressions are sent. */
  #nowMs = Date.now()

  constructor(database: Database, claims: readonly AnyClaim[], leaseMs: number | null) {
    checkClaims(claims)
    this.#database = database
    this.#claims = claims
    this.#leaseMs = leaseMs
    this.#sorted = sortClaims(claims)
    this.#ids = claims.map(() => randomUUID())
    const spec = claims.find((one) => one instanceof OnceClaim)?.spec
    this.#maxAttempts = spec?.maxAttempts ?? 0
    this.holdsAmbiguous = spec?.onAmbiguous === 'hold'
    const defaultWaitMs = leaseMs === null ? 5_000 : 0
    if (spec)
      this.once = new OnceCall(database, toCallSpec({ ...spec, waitMs: spec.waitMs ?? defaultWaitMs }))
    this.holder = newHolder(this.once?.id)
  }

  get subject(): string {
    const names = this.#claims.map((claim) =>
      claim.kind === 'once' ? this.once?.subject : kindOf(claim).describe(claim),
    )
    return names.join(', ')
  }

  get kinds(): ClaimKind[] {
    return this.#claims.map(({ kind }) => kind)
  }

  /** The locks whose waiters are notified when a leased call ends. */
  get locks(): string[] {
    return this.#sorted.flatMap(({ claim }) => kindOf(claim).lockOf(claim) ?? [])
  }

  /** The claim that the database makes first. */
  get firstClaim(): { readonly index: number; readonly kind: ClaimKind } {
    const index = this.once ? this.kinds.indexOf('once') : (this.#sorted[0]?.index ?? 0)
    return { index, kind: this.kinds[index] ?? 'once' }
  }

  /** The key of the queue of this process for the first claim. Undefined if the call does not wait for its first claim. */
  get queueKey(): string | undefined {
    const first = this.#sorted[0]?.claim
    return this.once ? this.once.queueKey : first && kindOf(first).queueKey(first)
  }

  /** True if one of the claims stores the outcome. */
  get storesOutcome(): boolean {
    return this.once !== undefined || this.#sorted.some(({ claim }) => kindOf(claim).storesOutcome)
  }

  /** True if a claim behind the idempotency key stays taken when the function fails. */
  get keepsFailure(): boolean {
    return this.#sorted.some(({ claim }) => kindOf(claim).keepsFailure(claim))
  }

  /** True if a fence shows whether the claims are still held. */
  get hasFence(): boolean {
    return this.once !== undefined || this.#sorted.some(({ claim }) => kindOf(claim).hasFence)
  }

  get isLeased(): boolean {
    return this.#leaseMs !== null
  }

  /** The clocks of the database and of this process differ: sends slots around this time from now on. */
  setTime(nowMs: number): void {
    this.#nowMs = nowMs
  }

  /** The values of the statement that begins the claims. `isRepeated`: it was sent before. */
  beginValues(waitMs: number, isRepeated: boolean): TextValue[] {
    const isCountedTwice = this.#sorted.some(({ claim }) => !kindOf(claim).recognizesRepeat)
    return [
      this.once ? JSON.stringify(this.#onceItem(this.once)) : null,
      JSON.stringify(this.items()),
      this.isLeased ? this.holder : null,
      this.#leaseMs === null ? null : String(this.#leaseMs),
      String(this.#boundWait(waitMs)),
      String(isRepeated && this.isLeased && isCountedTwice),
    ]
  }

  /** Stays below the statement timeout, which would fail with another error. */
  #boundWait(waitMs: number): number {
    return Math.max(AT_ONCE_MS, this.#database.boundWait(waitMs))
  }

  #onceItem(once: OnceCall): object {
    const [scope, key, id, fingerprint, keepMs, waitMs] = once.beginValues()
    return {
      ...{ scope, key, id, fingerprint: fingerprint ?? undefined, waitMs: this.#boundWait(Number(waitMs)) },
      ...(keepMs === null ? {} : { keepMs: Number(keepMs) }),
      hold: this.holdsAmbiguous,
      maxLost: this.#maxAttempts,
      gaveUp: JSON.parse(givenUpOutcome(this.#maxAttempts)),
    }
  }

  /** All claims but the idempotency key, as sent to the database. */
  items(): AcquireItem[] {
    const context = { nowMs: this.#nowMs, isLeased: this.isLeased }
    return this.#sorted.map(({ claim, index }) => ({
      kind: claim.kind,
      index,
      ...kindOf(claim).item(claim, { ...context, id: `${this.#ids[index]}` }),
    }))
  }

  /** The remaining times of the leases that the database has returned. */
  leftMs({ once, results }: AcquireResult): (number | null | undefined)[] {
    const others = this.#sorted.map(({ claim }, n) => results[n] && kindOf(claim).leftMs(results[n]))
    return [once?.leftMs, ...others]
  }

  /** Writes how each claim ends, as JSON for the SQL functions `acquire_end` and `acquire_renew`. */
  heldGrants({ once, results }: AcquireResult, ending: Ending): string {
    const others = this.#sorted.flatMap(({ claim }, n) => {
      const result = results[n]
      if (!result) return []
      const kind = kindOf(claim)
      return (
        (this.isLeased ? kind.endLeased(claim, result, ending) : kind.endJoined(claim, result, ending)) ?? []
      )
    })
    if (!this.once || !once) return JSON.stringify(others)
    const key = { ...this.once.spec, fence: once.fence }
    return JSON.stringify([endClaim(key, ending.kind === 'failed', ending), ...others])
  }

  /** The grants for the function, in the order of the claims. */
  grants({ once, results }: AcquireResult): unknown[] {
    return this.#claims.map((claim, index) => {
      if (claim.kind === 'once') return { id: once?.id, fence: once?.fence, attempt: once?.attempt }
      const result = results[this.#sorted.findIndex((sorted) => sorted.index === index)]
      return result && kindOf(claim).grant(claim, result)
    })
  }
}
