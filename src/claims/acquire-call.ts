import { randomUUID } from 'node:crypto'
import { InvalidInputError } from '../errors.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import { nameScope, singletonOf } from '../postgres/key.js'
import { isTerminalError } from '../postgres/stored-failure.js'
import { dateFromMicros, type TextRow, type TextValue } from '../postgres/text-values.js'
import { type AnyClaim, checkClaims, OnceClaim, SingletonClaim, sortClaims } from './acquire-claims.js'
import {
  type AcquireItem,
  readRefusal,
  readStoredRefusal,
  type ToldAcquire,
  type ToldOne,
} from './acquire-told.js'
import { explainGivingUp, OnceCall } from './once-call.js'
import { readSpec } from './once-spec.js'
import { readUse } from './quota-told.js'
import { resetsAtOf } from './rate-spec.js'
import type { ToldClaim } from './told-claim.js'

/** What is to be done with an answer of the database. */
export type Verdict =
  | { readonly todo: 'run'; readonly told: ToldAcquire }
  /** The idempotency key has its answer. */
  | { readonly todo: 'answer'; readonly claim: ToldClaim }
  /** Ask again, after a pause. */
  | { readonly todo: 'wait'; readonly pauseMs: number }
  /** Some were refused. `isStored`: as the outcome of the idempotency key, if this is committed. */
  | { readonly todo: 'refuse'; readonly error: Error; readonly isStored: boolean; readonly told: ToldAcquire }

export type CalledAs = 'dibs.acquire' | 'dibs.tryAcquire' | 'dibs.singleton' | 'dibs.trySingleton'

export interface AcquireSettings {
  /** How long to wait for other transactions to decide. */
  readonly waitMs: number
  /** How long the first may wait if it is no idempotency key, which says so itself. */
  readonly firstWaitMs: number
  /** Null: joined. */
  readonly leaseMs: number | null
  /** For errors: what the caller called. */
  readonly calledAs: CalledAs
}

/** One call of `acquire`, from its first look to its answer. */
export class AcquireCall {
  readonly database: Database
  readonly settings: AcquireSettings
  readonly once: OnceCall | undefined
  /** No other call has it. */
  readonly holder: string
  readonly #given: readonly AnyClaim[]
  readonly #sorted: readonly { readonly claim: AnyClaim; readonly index: number }[]
  readonly #ids = new Map<number, string>()
  readonly #maxAttempts: number
  readonly #holds: boolean
  readonly #startedAt = performance.now()
  #nowMs = Date.now()
  #tries = 0
  #moves = 0
  #asks = 0
  #othersSince: number | undefined
  #refusal: Error | undefined

  constructor(database: Database, given: readonly AnyClaim[], settings: AcquireSettings) {
    checkClaims(given)
    this.database = database
    this.settings = settings
    this.#given = given
    this.#sorted = sortClaims(given).filter(({ claim }) => claim.kind !== 'once')
    const spec = given.find((claim) => claim instanceof OnceClaim)?.spec
    this.#maxAttempts = spec?.maxAttempts ?? 5
    this.#holds = spec?.onAmbiguous === 'hold'
    if (spec) {
      const { maxAttempts: _, onAmbiguous: __, ...rest } = spec
      this.once = new OnceCall(database, readSpec(rest, settings.leaseMs === null))
    }
    const { holder } = this.once ?? new OnceCall(database, NOBODY)
    this.holder = holder
    for (const { index } of this.#sorted) this.#ids.set(index, randomUUID())
  }

  /** The error by which this call was refused. An error that its function throws is not a refusal. */
  get refusal(): Error | undefined {
    return this.#refusal ?? this.once?.refusal
  }

  /** The claim that this call asks for first, which may be waited for: the idempotency key, or a slot. */
  get first(): { readonly index: number; readonly kind: AnyClaim['kind'] } {
    const index = this.once ? this.kinds.indexOf('once') : (this.#sorted[0]?.index ?? 0)
    return { index, kind: this.kinds[index] ?? 'once' }
  }

  /** Notes that this call was refused. */
  refuse(error: Error): Error {
    this.#refusal = error
    return error
  }

  /** What calls of one process wait for each other by, not each on a connection: undefined, nothing of it can be waited for. */
  get turn(): string | undefined {
    if (this.once) return JSON.stringify([this.once.spec.scope, this.once.spec.key])
    const first = this.#sorted[0]?.claim
    return first instanceof SingletonClaim ? first.scope : undefined
  }

  get leftMs(): number {
    const mostMs = this.once ? this.once.spec.waitMs : this.settings.firstWaitMs
    return Math.max(0, mostMs - this.waitedMs)
  }

  get waitedMs(): number {
    return performance.now() - this.#startedAt
  }

  /** Whether an error of the function can leave something behind, for which everything else must be undone. */
  get mayKeep(): boolean {
    return (
      this.once !== undefined ||
      this.#sorted.some(({ claim }) => claim instanceof SingletonClaim && claim.keeps)
    )
  }

  /** An attempt that may have had its effect is not repeated. */
  get holds(): boolean {
    return this.#holds
  }

  /** Whether anything but a reservation says by its fence if it is still held. */
  get isFenced(): boolean {
    return this.#given.some(({ kind }) => kind !== 'quota' && kind !== 'rate')
  }

  /** The names of its locks. */
  get locks(): string[] {
    return this.#given.flatMap((claim) => (claim.kind === 'lock' ? [claim.name] : []))
  }

  get kinds(): AnyClaim['kind'][] {
    return this.#given.map(({ kind }) => kind)
  }

  /** Whether the outcome is kept, and by that must be JSON. */
  get stores(): boolean {
    return this.#given.some(({ kind }) => kind === 'once' || kind === 'singleton')
  }

  items(): (AcquireItem & Record<string, unknown>)[] {
    return this.#sorted.map(({ claim, index }) => ({
      kind: claim.kind as AcquireItem['kind'],
      index,
      ...this.#item(claim, index),
    }))
  }

  #item(claim: AnyClaim, index: number): object {
    if (claim.kind === 'once') return {}
    if (claim.kind === 'singleton') return claim.item(this.#nowMs)
    // What is reserved gets its id from the claim that it belongs to.
    const isListed = claim.kind === 'quota' && claim.fields.ledger && this.settings.leaseMs === null
    return isListed ? { id: this.#ids.get(index), ...claim.item() } : claim.item()
  }

  /** The values of `acquireClaims`. */
  values(): TextValue[] {
    const { leaseMs, firstWaitMs } = this.settings
    const isAgain = this.#asks++ > 0
    const waitMs = this.#boundedMs(isAgain ? this.leftMs : firstWaitMs)
    // All the other claims know themselves that they were made, if an answer was lost.
    const asksAgain = isAgain && leaseMs !== null && this.#given.some(({ kind }) => kind === 'rate')
    return [
      this.once ? JSON.stringify(this.#onceItem(this.once)) : null,
      JSON.stringify(this.items()),
      leaseMs === null ? null : this.holder,
      leaseMs === null ? null : String(leaseMs),
      String(waitMs),
      String(asksAgain),
    ]
  }

  /** Less than the server lets a statement run, which would fail in another way. */
  #boundedMs(waitMs: number): number {
    return Math.max(AT_ONCE_MS, this.database.boundWait(waitMs))
  }

  #onceItem(once: OnceCall): object {
    const [scope, key, id, fingerprint, keepMs, waitMs] = once.joinedValues()
    const common = {
      scope,
      key,
      id,
      fingerprint: fingerprint ?? undefined,
      waitMs: this.#boundedMs(Number(waitMs)),
    }
    return {
      ...common,
      ...(keepMs === null ? {} : { keepMs: Number(keepMs) }),
      hold: this.#holds,
      maxLost: this.#maxAttempts,
      gaveUp: JSON.parse(explainGivingUp(this.#maxAttempts)),
    }
  }

  judge(row: TextRow | undefined): Verdict {
    const told: ToldAcquire = JSON.parse(`${row?.told}`)
    if (this.once && told.once && (told.state === 'once' || told.state === 'granted')) {
      const { todo, claim } = this.once.judge({
        told: JSON.stringify(told.once),
        waited: row?.waited ?? null,
      })
      if (todo === 'wait') return { todo, pauseMs: this.once.pauseMs }
      if (todo === 'answer') return { todo, claim }
    }
    this.#tries++
    if (told.state === 'granted') return { todo: 'run', told }
    const lateClock = told.results.find(({ state }) => state === 'no slot')
    if (lateClock) return this.#moveTo(lateClock)
    if (told.results.some(({ state }) => state === 'nested'))
      throw this.#calledAsSingleton
        ? new InvalidInputError('scope', 'is of a slot that this very transaction has claimed before')
        : new InvalidInputError('claims', 'hold a slot that this very transaction has claimed before')
    const refused = told.results.filter(({ granted }) => !granted)
    const isUndecided = refused.every(({ isBusy }) => isBusy)
    const { leftMs, waitedMs } = this.#waitFor(told)
    if (isUndecided && leftMs > 0) return { todo: 'wait', pauseMs: Math.min(leftMs, this.#pauseMs) }
    const isStored = told.isFinal && this.once !== undefined
    const refusal = readRefusal(this.items(), told, Math.round(waitedMs), false)
    emit('dibs:acquire.refused', {
      ...this.database.origin,
      kinds: refusal.failures.map(({ kind }) => kind),
      isFinal: told.isFinal,
      waitedMs: Math.round(this.waitedMs),
      retries: this.#tries - 1,
    })
    // Of a slot alone its own reason says it all.
    const error = this.refuse((this.#calledAsSingleton && refusal.failures[0]?.error) || refusal)
    return { todo: 'refuse', error, isStored, told }
  }

  get #calledAsSingleton(): boolean {
    return this.settings.calledAs.endsWith('ingleton')
  }

  /** The first may wait for longer, and what that took is not taken from the others, which wait from the moment when it was had. */
  #waitFor(told: ToldAcquire): { readonly leftMs: number; readonly waitedMs: number } {
    const { waitMs, firstWaitMs } = this.settings
    const isFirst = !this.once && told.results[0]?.isBusy && this.#sorted[0]?.claim instanceof SingletonClaim
    if (isFirst) return { leftMs: Math.max(firstWaitMs, waitMs) - this.waitedMs, waitedMs: this.waitedMs }
    this.#othersSince ??= performance.now() - told.tookMs
    const waitedMs = performance.now() - this.#othersSince
    return { leftMs: waitMs - waitedMs, waitedMs }
  }

  /** The clock of the database is not where this process's is; once it is known, its slots are. */
  #moveTo({ now }: ToldOne): Verdict {
    const nowMs = Number(now) / 1_000
    if (++this.#moves > 3)
      throw new InvalidInputError(
        'per',
        'has no period at this time: its slots are all before it, or all after it',
      )
    this.#nowMs = nowMs
    return { todo: 'wait', pauseMs: 0 }
  }

  /** Between 50 and 100 ms, so that those who wait do not come back together; less at first, for most transactions are short. */
  get #pauseMs(): number {
    const mostMs = Math.min(100, 10 * 2 ** this.#tries)
    return mostMs * (0.5 + Math.random() / 2)
  }

  /** What the function is given, in the order of the claims. */
  grants({ once, results }: ToldAcquire): unknown[] {
    return this.#given.map((claim, index) => {
      if (claim.kind === 'once') return { id: once?.id, fence: once?.fence, attempt: once?.attempt }
      const one = results[this.#sorted.findIndex((sorted) => sorted.index === index)]
      return one && readGrant(claim, one)
    })
  }

  /** What a refusal or an answer that is stored says: an error that was thrown then, or the outcome. */
  async answer(claim: ToldClaim, isOwn: boolean): Promise<unknown> {
    const refusal = readStoredRefusal(claim)
    if (refusal) throw this.refuse(refusal)
    return (await this.once?.answer(claim, !isOwn))?.value
  }

  /** What is kept of a failure: by the idempotency key if it is final, by slots that are kept in any case. */
  keeps(error: unknown): { readonly once: boolean; readonly slots: boolean } {
    return {
      once: this.once !== undefined && isTerminalError(error, this.once.spec.isTerminal),
      slots: this.#sorted.some(({ claim }) => claim instanceof SingletonClaim && claim.keeps),
    }
  }

  /** How everything ends, for `acquire_end`: with an outcome, or with an error of which some keep the memory. */
  endings(told: ToldAcquire, end: Ending): string {
    const { once } = this
    const own =
      once && told.once
        ? [
            this.#endClaim(
              once.spec.scope,
              once.spec.key,
              told.once.fence,
              once.spec.keepMs,
              end,
              end.keepsOnce,
            ),
          ]
        : []
    const others = this.#sorted.map(({ claim }, n) => {
      const one = told.results[n]
      return one ? this.#endOne(claim, one, end) : undefined
    })
    return JSON.stringify([...own, ...others.filter((one) => one !== undefined)])
  }

  #endOne(claim: AnyClaim, one: ToldOne, end: Ending): object | undefined {
    const isLeased = this.settings.leaseMs !== null
    if (claim.kind === 'singleton')
      return this.#endClaim(
        claim.scope,
        `${one.slot?.key}`,
        Number(one.claim?.fence),
        String(one.keepMs),
        end,
        claim.keeps,
      )
    if (claim.kind === 'quota') {
      const { name, subject, amount, limit, fields } = claim
      const id = one.id ?? undefined
      // What was used under its id before is not this call's to end.
      if (isLeased && one.take?.entry !== 'taken')
        return { kind: 'hold', name, subject, id, amount, limit, per: fields.per }
      return one.state === 'known' ? undefined : { kind: 'take', name, subject, id, amount }
    }
    // Leased, a rate limit counts the attempt; joined, it is undone with the rest.
    if (claim.kind === 'rate') return isLeased ? undefined : { kind: 'rate', ...claim.item() }
    if (claim.kind === 'lock')
      return isLeased ? { kind: 'lock', name: claim.name, fence: one.lock?.fence } : undefined
    return undefined
  }

  #endClaim(
    scope: string,
    key: string,
    fence: number,
    keepMs: string | null,
    end: Ending,
    keeps: boolean,
  ): object {
    const status = end.isDone ? (end.isUnkept ? 'failed' : 'active') : keeps ? 'failed' : undefined
    // A slot that is not kept is free at once, though it is not known what became of the key.
    const restMs = singletonOf(scope) === undefined ? end.restMs : null
    return {
      kind: 'claim',
      scope,
      key,
      fence,
      ...(keepMs === null ? {} : { keepMs: Number(keepMs) }),
      ...(status === undefined
        ? { ...(restMs === null ? {} : { restMs }), error: JSON.parse(end.text ?? 'null') }
        : { status, outcome: end.text }),
    }
  }

  describe(): string {
    const names = this.#given.map((claim) => {
      if (claim.kind === 'once') return this.once?.subject
      if (claim.kind === 'singleton') return `a slot ${nameScope(claim.scope)}`
      return claim.kind === 'lock' ? `lock "${claim.name}"` : `${claim.kind} "${claim.name}"`
    })
    return names.join(', ')
  }
}

/** How a run ended. */
export interface Ending {
  readonly isDone: boolean
  /** The work is done, but what came of it cannot be stored: it must not be done again. */
  readonly isUnkept?: boolean
  /** The outcome, or the error, as JSON. */
  readonly text: string | null
  /** The error is the outcome of the idempotency key. */
  readonly keepsOnce: boolean
  /** Of a claim that is released after a failure; null: at once. */
  readonly restMs: number | null
}

/** A wait that is not meant to be one. */
const AT_ONCE_MS = 10

/** For a holder's name where there is no idempotency key. */
const NOBODY = {
  scope: 'acquire',
  key: '-',
  fingerprint: null,
  waitMs: 0,
  keepMs: null,
  result: undefined,
  isTerminal: undefined,
  requestId: undefined,
}

function readGrant(claim: AnyClaim, one: ToldOne): unknown {
  if (claim.kind === 'singleton')
    return {
      key: one.slot?.key,
      startsAt: dateFromMicros(String(one.slot?.startsAt)),
      endsAt: dateFromMicros(String(one.slot?.endsAt)),
      id: one.claim?.id,
      fence: one.claim?.fence,
    }
  if (claim.kind === 'quota') {
    const use = { ...readUse(one.row ?? null, claim.limit), replayed: one.state === 'known' }
    return one.id ? { ...use, id: one.id } : use
  }
  if (claim.kind === 'rate')
    return { remaining: one.take?.remaining, resetsAt: resetsAtOf(Number(one.take?.resetUs)) }
  return { name: 'name' in claim ? claim.name : '', fence: one.lock?.fence }
}
