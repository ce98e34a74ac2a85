import type { Held, StormMessage } from './storm-child.js'

export const faults = ['SIGKILL', 'SIGSTOP', 'terminate'] as const
export type Fault = (typeof faults)[number]

/** A fault that struck live work. */
interface Hit {
  readonly fault: Fault
  readonly held: Held
  readonly keyHash: string
  /** Done in the transaction of the caller, so that there is no lease to take over. */
  readonly isJoined: boolean
  isFollowed: boolean
  isFinished: boolean
  readonly refused: Set<string>
}

/** The counts for each kind of fault. */
export interface Count {
  readonly fault: Fault
  readonly strikes: number
  /** Holders of a lease that were struck at work, and transactions. */
  readonly leased: number
  readonly joined: number
  /** Leased claims that another attempt took over. */
  readonly takenOver: number
  /** Joined claims that another run began again. */
  readonly begunAgain: number
  /** Late writes of those holders that the database has refused. */
  readonly refused: number
  /** Leased claims whose outcome the struck attempt still stored. */
  readonly finished: number
}

/** The faults that struck live work, and the results. */
export class Hits {
  readonly #hits: Hit[] = []
  readonly #strikes = new Map<Fault, number>()
  readonly #hashOf: (key: string) => string
  /** Takeovers of attempts that no fault had struck: a machine with other things to do, or a kill before the first word. */
  unexplained = 0
  /** Keys whose first attempt threw, without a fault; and how many of these were taken over in place of given back. */
  readonly threw = new Set<string>()
  notGivenBack = 0

  constructor(hashOf: (key: string) => string) {
    this.#hashOf = hashOf
  }

  /** A fault was at work from `from`; `held` is what its target held then and had not ended when it was over. */
  strike(fault: Fault, held: Iterable<Held>, from: number): Held[] {
    this.#strikes.set(fault, (this.#strikes.get(fault) ?? 0) + 1)
    const struck = [...held].filter(({ since }) => since < from)
    for (const one of struck)
      this.#hits.push({
        fault,
        held: one,
        keyHash: this.#hashOf(one.key),
        isJoined: one.fence === 0,
        isFollowed: false,
        isFinished: false,
        refused: new Set(),
      })
    return struck
  }

  /** The fault turned out to have come too late: the work was done. */
  #forget(run: string, fault: Fault, before: number, on: number): void {
    if (on > before) return
    const at = this.#hits.findIndex((hit) => hit.fault === fault && hit.held.run === run)
    if (at >= 0) this.#hits.splice(at, 1)
  }

  /** An end that was under way while a backend was being ended: which was first, the clock tells. */
  readonly #terminatedAt = new Map<string, number>()

  terminated(held: Held, at: number): void {
    this.#terminatedAt.set(held.run, at)
  }

  note(message: StormMessage): void {
    if (message.at === 'begin' && message.fence === 0) this.#followJoined(message.key, message.run)
    else if (message.at === 'ended') this.#end(message)
    else if (message.at === 'refused') this.#refuse(message.fence, message.how)
    else if (message.at === 'event' && message.name === 'taken-over')
      this.#followLeased(message.keyHash, message.attempt)
    else if (message.at === 'event' && message.name === 'lost' && message.how !== 'deadline')
      this.#refuse(message.fence, message.how)
  }

  #end({ key, run, how, on }: Extract<StormMessage, { at: 'ended' }>): void {
    this.#forget(run, 'terminate', this.#terminatedAt.get(run) ?? 0, on)
    for (const hit of this.#hits) if (hit.held.run === run && how === 'stored') hit.isFinished = true
    if (how === 'PASSING' && !this.#hits.some(({ held }) => held.run === run))
      this.threw.add(this.#hashOf(key))
  }

  #followJoined(key: string, run: string): void {
    for (const hit of this.#hits)
      if (hit.isJoined && hit.held.key === key && hit.held.run !== run) hit.isFollowed = true
  }

  #followLeased(keyHash: string, attempt: number): void {
    const hits = this.#hits.filter((hit) => hit.keyHash === keyHash && hit.held.attempt === attempt - 1)
    if (attempt === 2 && this.threw.has(keyHash)) this.notGivenBack++
    // The last of several faults ended the attempt.
    const hit = hits.at(-1)
    if (hit) hit.isFollowed = true
    else this.unexplained++
  }

  #refuse(fence: number, how: string): void {
    this.#hits.findLast(({ held }) => held.fence === fence)?.refused.add(how)
  }

  count(fault: Fault): Count {
    const hits = this.#hits.filter((hit) => hit.fault === fault)
    const leased = hits.filter(({ isJoined }) => !isJoined)
    const joined = hits.filter(({ isJoined }) => isJoined)
    return {
      fault,
      strikes: this.#strikes.get(fault) ?? 0,
      leased: leased.length,
      joined: joined.length,
      takenOver: leased.filter(({ isFollowed }) => isFollowed).length,
      begunAgain: joined.filter(({ isFollowed }) => isFollowed).length,
      refused: leased.reduce((sum, { refused }) => sum + refused.size, 0),
      finished: leased.filter(({ isFinished }) => isFinished).length,
    }
  }
}
