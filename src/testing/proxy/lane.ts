/** The other end of a lane. */
export interface LaneEnd {
  /** False when it wants no more until `drained()`. */
  write(bytes: Buffer): boolean
  end(): void
  reset(): void
}

/** What the faults in force make of one way of one connection. */
export interface LaneConditions {
  readonly isSilent: () => boolean
  /** Infinity where nothing holds it back. */
  readonly bytesPerSecond: () => number
  readonly lateMs: () => number
}

interface Waiting {
  /** Bytes, or how the stream ends: with an orderly end or a reset. */
  readonly what: Buffer | 'end' | 'reset'
  dueAt: number
}

/** Past this the source is told to wait, so that a slow reader does not fill our memory. */
const MANY_BYTES = 1 << 20
/** A slow line gives a little at a time. */
const SLICE_MS = 20

/** One way of one connection: what is put in comes out at the other end in order, as late and as slowly as the faults will. */
export class Lane {
  readonly #conditions: LaneConditions
  readonly #destination: LaneEnd
  readonly #setFull: (isFull: boolean) => void
  readonly #waiting: Waiting[] = []
  #waitingBytes = 0
  #lastDueAt = 0
  /** When a line of limited bandwidth has taken all that went before. */
  #freeAt = 0
  #isFull = false
  #awaitsDrain = false
  #isOver = false
  #timer: NodeJS.Timeout | undefined

  constructor(conditions: LaneConditions, destination: LaneEnd, setFull: (isFull: boolean) => void) {
    this.#conditions = conditions
    this.#destination = destination
    this.#setFull = setFull
  }

  put(bytes: Buffer): void {
    if (bytes.length > 0) this.#add(bytes)
  }

  /** The source has ended: so does the destination, once all before is through. */
  end(how: 'end' | 'reset'): void {
    this.#add(how)
  }

  /** The destination is gone: what still comes is thrown away, or the source would wait for ever. */
  discard(): void {
    this.#isOver = true
    this.#waiting.length = 0
    this.#waitingBytes = 0
    clearTimeout(this.#timer)
    this.#awaitsDrain = false
    this.#updateFull()
  }

  /** Other faults are in force. */
  reconsider(): void {
    const now = performance.now()
    this.#freeAt = now
    // What was held back by a latency that is over is not held back any longer.
    if (this.#conditions.lateMs() === 0) {
      for (const waiting of this.#waiting) waiting.dueAt = Math.min(waiting.dueAt, now)
      this.#lastDueAt = now
    }
    this.#pump()
  }

  drained(): void {
    this.#awaitsDrain = false
    this.#pump()
  }

  #add(what: Waiting['what']): void {
    if (this.#isOver) return
    this.#lastDueAt = Math.max(this.#lastDueAt, performance.now() + this.#conditions.lateMs())
    this.#waiting.push({ what, dueAt: this.#lastDueAt })
    if (typeof what !== 'string') this.#waitingBytes += what.length
    this.#pump()
  }

  #pump(): void {
    clearTimeout(this.#timer)
    while (!this.#isOver && !this.#awaitsDrain && !this.#conditions.isSilent()) {
      const head = this.#waiting[0]
      if (!head) break
      const { bytes, at } = this.#next(head)
      const waitMs = at - performance.now()
      if (waitMs > 0) {
        this.#timer = setTimeout(() => this.#pump(), Math.ceil(waitMs))
        break
      }
      this.#freeAt = at
      this.#take(head, bytes)
    }
    this.#updateFull()
  }

  /** What of the head goes next, and when. */
  #next({ what, dueAt }: Waiting): { bytes: Buffer | undefined; at: number } {
    if (typeof what === 'string') return { bytes: undefined, at: dueAt }
    const rate = this.#conditions.bytesPerSecond()
    if (rate === Number.POSITIVE_INFINITY) return { bytes: what, at: dueAt }
    const bytes = what.subarray(0, Math.ceil((rate * SLICE_MS) / 1000))
    return { bytes, at: Math.max(this.#freeAt, dueAt) + (bytes.length / rate) * 1000 }
  }

  #take({ what, dueAt }: Waiting, bytes: Buffer | undefined): void {
    if (typeof what === 'string' || !bytes) {
      this.discard()
      if (what === 'end') this.#destination.end()
      else this.#destination.reset()
      return
    }
    if (bytes.length === what.length) this.#waiting.shift()
    else this.#waiting[0] = { what: what.subarray(bytes.length), dueAt }
    this.#waitingBytes -= bytes.length
    if (!this.#destination.write(bytes)) this.#awaitsDrain = true
  }

  #updateFull(): void {
    const isFull = this.#awaitsDrain || this.#waitingBytes > MANY_BYTES
    if (isFull === this.#isFull) return
    this.#isFull = isFull
    this.#setFull(isFull)
  }
}
