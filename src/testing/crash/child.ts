import type { ChildProcess } from 'node:child_process'
import { ExplorationError } from '../../errors.js'
import { withTimeout } from '../../postgres/with-timeout.js'

/** How long a process that was killed may take to be gone. */
const GONE_MS = 10_000
/** Of what it wrote to its stderr, if that is a pipe: the end. */
const MOST_SAID = 800

/** The program under test as a real process. */
export class Child {
  readonly #process: ChildProcess
  readonly #exited: Promise<string | undefined>
  #isGone = false

  constructor(start: () => ChildProcess | undefined) {
    const started = start()
    if (typeof started?.kill !== 'function' || typeof started.once !== 'function')
      throw new ExplorationError('`child` must return the process that it has started.', 'setup')
    this.#process = started
    // A pipe that nobody reads would stop it.
    started.stdout?.resume()
    let said = ''
    started.stderr?.on('data', (chunk) => {
      said = `${said}${chunk}`.slice(-MOST_SAID)
    })
    this.#exited = new Promise((resolve) => {
      const done = (how: string | undefined): void => {
        this.#isGone = true
        resolve(how)
      }
      this.#process.once('error', (error) => done(error.message))
      this.#process.once('exit', (code, signal) =>
        done(
          code === 0
            ? undefined
            : [
                signal ? `it was ended by ${signal}` : `it ended with code ${code}`,
                ...said.trim().split('\n'),
              ]
                .filter(Boolean)
                .join('\n    '),
        ),
      )
    })
  }

  /** Resolves when it has ended well, and rejects otherwise. */
  async ended(): Promise<void> {
    const how = await this.#exited
    if (how !== undefined) throw new Error(`the child process failed: ${how}`)
  }

  stop(): void {
    this.#process.kill('SIGSTOP')
  }

  goOn(): void {
    this.#process.kill('SIGCONT')
  }

  /** Resolves when it is gone. */
  async kill(): Promise<void> {
    if (this.#isGone) return
    this.#process.kill('SIGKILL')
    await withTimeout(this.#exited, GONE_MS, () => {
      throw new ExplorationError(`The child process ${this.#process.pid} does not end.`, 'stalled')
    })
  }
}
