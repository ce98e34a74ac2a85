/** Where the bytes of a channel go. */
export interface ChannelDestination {
  /** Returns false if the channel must wait for `drained()`. */
  write(bytes: Buffer): boolean
  end(): void
  reset(): void
}

/** The effect of the active faults on one direction of a connection. */
export interface ChannelConditions {
  readonly isSilent: () => boolean
  /** Infinity without a limit. */
  readonly bytesPerSecond: () => number
  readonly lateMs: () => number
}

interface Waiting {
  /** Bytes, or the end of the stream: an orderly end or a reset. */
  readonly what: Buffer | 'end' | 'reset'
  dueAt: number
}

/** Beyond this the source pauses, so that a slow reader does not fill the memory of this process. */
const MAX_WAITING_BYTES = 1 << 20
/** With limited bandwidth, the bytes of this duration are sent at once. */
const SLICE_MS = 20

/** One direction of a connection. Passes bytes on in order, with the delay and the bandwidth of the active faults. */
export class OneWayChannel {
  readonly #conditions: ChannelConditions
  readonly #destination: ChannelDestination
  readonly #setFull: (isFull: boolean) => void
  readonly #waiting: Waiting[] = []
  #waitingBytes = 0
  #lastDueAt = 0
  /** When the limited bandwidth has sent all earlier bytes. */
  #freeAt = 0
  #isFull = false
  #awaitsDrain = false
  #isOver = false
  #timer: NodeJS.Timeout | undefined

  constructor(
    conditions: ChannelConditions,
    destination: ChannelDestination,
    setFull: (isFull: boolean) => void,
  ) {
    this.#conditions = conditions
    this.#destination = destination
    this.#setFull = setFull
  }

  put(bytes: Buffer): void {
    if (bytes.length > 0) this.#add(bytes)
  }

  /** Ends the destination after all earlier bytes were sent. */
  end(how: 'end' | 'reset'): void {
    this.#add(how)
  }

  /** Drops all bytes, also later ones. Otherwise the source would wait forever for a destination that is gone. */
  discard(): void {
    this.#isOver = true
    this.#waiting.length = 0
    this.#waitingBytes = 0
    clearTimeout(this.#timer)
    this.#awaitsDrain = false
    this.#updateFull()
  }

  /** Called when the active faults have changed. */
  applyFaults(): void {
    const now = performance.now()
    this.#freeAt = now
    // Bytes that a latency has delayed are sent when that latency ends.
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

  /** Which part of the first bytes is sent next, and when. */
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
    const isFull = this.#awaitsDrain || this.#waitingBytes > MAX_WAITING_BYTES
    if (isFull === this.#isFull) return
    this.#isFull = isFull
    this.#setFull(isFull)
  }
}
