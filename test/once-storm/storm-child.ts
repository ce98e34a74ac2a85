import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'

/** Work that a process has begun and not ended, by its messages. */
export interface Held {
  readonly key: string
  /** Tells one run of a handler from every other: the fence, or an id where there is none. */
  readonly run: string
  readonly fence: number
  readonly attempt: number
  /** By the clock that all processes of this machine share. */
  readonly since: number
}

export interface Call {
  readonly call: number
  readonly number: number
}

/** A message of a process. `on` is its time. */
export type StormMessage = { readonly on: number } & (
  | { readonly at: 'ready' }
  | { readonly at: 'died'; readonly how: string }
  | { readonly at: 'connected' | 'disconnected'; readonly pid: number }
  | ({ readonly at: 'begin' | 'ending' } & Omit<Held, 'since'>)
  | { readonly at: 'ended'; readonly key: string; readonly run: string; readonly how: string }
  | { readonly at: 'refused'; readonly key: string; readonly fence: number; readonly how: 'step' }
  | { readonly at: 'answer'; readonly call: number; readonly key: string; readonly text: string }
  | { readonly at: 'failed'; readonly call: number; readonly key: string; readonly error: string }
  | { readonly at: 'again'; readonly code: string }
  | {
      readonly at: 'event'
      readonly name: 'taken-over' | 'lost' | 'gave-up' | 'not-stored' | 'unknown'
      readonly keyHash: string
      readonly attempt: number
      readonly fence: number
      readonly how: string
    }
)

const script = join(import.meta.dirname, '../children/call-once.mjs')
const CALLS_AT_ONCE = 5

/** One process of the storm, as its parent sees it. */
export class StormChild {
  readonly #process: ChildProcess
  readonly #gone: Promise<unknown>
  /** Its backends, those of the world outside left out. */
  readonly backends = new Set<number>()
  readonly held = new Map<string, Held>()
  readonly calls = new Map<number, Call>()
  #isKilled = false
  isReady = false
  /** A fault is under way: no further one, and no new calls. */
  isStruck = false

  constructor(settings: object, onMessage: (child: StormChild, message: StormMessage) => void) {
    this.#process = fork(script, [JSON.stringify(settings)])
    // The channel closes after the last message of a dead process was read.
    this.#gone = Promise.all([once(this.#process, 'exit'), once(this.#process, 'disconnect')])
    this.#process.once('exit', (code, signal) => {
      if (!this.#isKilled) onMessage(this, { at: 'died', on: Date.now(), how: `${signal ?? code}` })
    })
    this.#process.on('message', (message: StormMessage) => {
      this.#note(message)
      onMessage(this, message)
    })
  }

  #note(message: StormMessage): void {
    if (message.at === 'ready') this.isReady = true
    else if (message.at === 'connected') this.backends.add(message.pid)
    else if (message.at === 'disconnected') this.backends.delete(message.pid)
    else if (message.at === 'begin') this.held.set(message.run, { ...message, since: message.on })
    else if (message.at === 'ended') this.held.delete(message.run)
    else if (message.at === 'answer' || message.at === 'failed') this.calls.delete(message.call)
  }

  get isFree(): boolean {
    return this.isReady && !this.isStruck && this.calls.size < CALLS_AT_ONCE
  }

  send(call: Call): void {
    this.calls.set(call.call, call)
    this.#process.send(call)
  }

  stop(): void {
    this.#process.kill('SIGSTOP')
  }

  resume(): void {
    this.#process.kill('SIGCONT')
  }

  /** Kills the process, also a stopped one. Waits until the process is gone and all its messages are read. */
  async kill(): Promise<void> {
    this.#isKilled = true
    this.#process.kill('SIGKILL')
    await this.#gone
  }
}
