const COMMAND_COMPLETE = 'C'.charCodeAt(0)
const PARSE_COMPLETE = '1'.charCodeAt(0)

/** The messages of the server that the client gets after the last step of its request. */
export class HeldResponse {
  #messages: Buffer[] = []

  add(bytes: Buffer): void {
    this.#messages.push(bytes)
  }

  clear(): void {
    this.#messages = []
  }

  /** Returns all messages as one buffer, and forgets them. */
  take(): Buffer {
    const bytes = Buffer.concat(this.#messages)
    this.#messages = []
    return bytes
  }

  /** Drops the command tags. A statement whose COMMIT fails has failed, although the server has sent its tag. */
  dropTags(): void {
    this.#messages = this.#messages.filter((bytes) => bytes[0] !== COMMAND_COMPLETE)
  }

  /** How many Parse messages the server has answered. */
  get parsed(): number {
    return this.#messages.filter((bytes) => bytes[0] === PARSE_COMPLETE).length
  }

  /** Keeps only the first `count` answers to Parse. */
  keepParsed(count: number): void {
    this.#messages = this.#messages.filter((bytes) => bytes[0] === PARSE_COMPLETE).slice(0, count)
  }
}
