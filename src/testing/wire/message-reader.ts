/** One complete message of PostgreSQL's protocol. */
export interface Message {
  /** The type letter. Empty for the first messages of a client: startup, SSL and cancel requests. */
  readonly type: string
  readonly bytes: Buffer
}

const HEADER = 5
const UNTYPED_HEADER = 4
/** A greater length shows that the bytes are of another protocol. */
const MAX_BYTES = 1 << 30
/** PostgreSQL's own limit for a message without a type letter. */
const MAX_UNTYPED_BYTES = 10_000

/** Splits a stream of bytes into messages. */
export class MessageReader {
  /** True while messages have no type letter, as the first messages of a client. */
  isUntyped: boolean
  #rest: Buffer = Buffer.alloc(0)
  /** Later chunks of an incomplete message. Joining them at each chunk would take quadratic time for a large message. */
  #more: Buffer[] = []
  #missing = 0

  constructor({ isUntyped = false } = {}) {
    this.isUntyped = isUntyped
  }

  /** Returns the unread bytes. Used when the rest of the stream has no messages (TLS). */
  takeRest(): Buffer {
    const rest = Buffer.concat([this.#rest, ...this.#more])
    this.#rest = Buffer.alloc(0)
    this.#more = []
    this.#missing = 0
    return rest
  }

  /** A generator, because the caller may change `isUntyped` between two messages. */
  *read(chunk: Buffer): Generator<Message> {
    this.#more.push(chunk)
    this.#missing -= chunk.length
    if (this.#missing > 0) return
    this.#rest = this.#rest.length === 0 && this.#more.length === 1 ? chunk : this.takeRest()
    this.#more = []
    for (;;) {
      const length = this.#nextLength()
      this.#missing = Math.max(length - this.#rest.length, 0)
      if (this.#missing > 0) return
      const bytes = this.#rest.subarray(0, length)
      const type = this.isUntyped ? '' : String.fromCharCode(bytes[0] as number)
      this.#rest = this.#rest.subarray(length)
      yield { type, bytes }
    }
  }

  /** The length of the next message or, while that is unknown, of its header. */
  #nextLength(): number {
    const header = this.isUntyped ? UNTYPED_HEADER : HEADER
    if (this.#rest.length < header) return header
    const length = this.#rest.readInt32BE(header - 4) + (header - 4)
    if (length < header || length > (this.isUntyped ? MAX_UNTYPED_BYTES : MAX_BYTES))
      throw new RangeError(`a message of ${length} bytes: this is not PostgreSQL's protocol`)
    return length
  }
}
