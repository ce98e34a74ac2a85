/** One message of PostgreSQL's protocol, whole. */
export interface Message {
  /** Its letter; empty for what a client says before it has one: startup, SSL and cancel requests. */
  readonly type: string
  readonly bytes: Buffer
}

const HEADER = 5
const UNTYPED_HEADER = 4
/** A length beyond this is not a message but something else on our port. */
const MAX_BYTES = 1 << 30
/** The server's own limit for what comes before the first letter. */
const MAX_UNTYPED_BYTES = 10_000

/** Cuts a stream of bytes into messages, however the network sliced it. */
export class MessageReader {
  /** A client's first messages carry no letter. */
  isUntyped: boolean
  #rest: Buffer = Buffer.alloc(0)
  /** What came since and does not yet complete a message; joined once, or a large message would cost the square of its size. */
  #more: Buffer[] = []
  #missing = 0

  constructor({ isUntyped = false } = {}) {
    this.isUntyped = isUntyped
  }

  /** What is left when the rest of the stream is no longer messages (TLS). */
  takeRest(): Buffer {
    const rest = Buffer.concat([this.#rest, ...this.#more])
    this.#rest = Buffer.alloc(0)
    this.#more = []
    this.#missing = 0
    return rest
  }

  /** The reader may be told between two messages that the next one has a letter: hence a generator. */
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

  /** Of the next message or, while that is not known, of its header. */
  #nextLength(): number {
    const header = this.isUntyped ? UNTYPED_HEADER : HEADER
    if (this.#rest.length < header) return header
    const length = this.#rest.readInt32BE(header - 4) + (header - 4)
    if (length < header || length > (this.isUntyped ? MAX_UNTYPED_BYTES : MAX_BYTES))
      throw new RangeError(`a message of ${length} bytes: this is not PostgreSQL's protocol`)
    return length
  }
}
