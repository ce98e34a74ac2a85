import type { ChildProcess } from 'node:child_process'
import { ExplorationError } from '../../errors.js'
import { withTimeout } from '../../postgres/with-timeout.js'

/** How long a killed process may take to end. */
const MAX_END_MS = 10_000
/** How many characters of the end of stderr an error message shows, if stderr is a pipe. */
const MAX_STDERR = 800

/** The program under test as a real process. */
export class ChildProgram {
  readonly #process: ChildProcess
  readonly #exited: Promise<string | undefined>
  #hasEnded = false

  constructor(start: () => ChildProcess | undefined) {
    const started = start()
    if (typeof started?.kill !== 'function' || typeof started.once !== 'function')
      throw new ExplorationError('`child` must return the process that it has started.', 'setup')
    this.#process = started
    // A full pipe without a reader would block the process.
    started.stdout?.resume()
    let stderr = ''
    started.stderr?.on('data', (chunk) => {
      stderr = `${stderr}${chunk}`.slice(-MAX_STDERR)
    })
    this.#exited = new Promise((resolve) => {
      const done = (how: string | undefined): void => {
        this.#hasEnded = true
        resolve(how)
      }
      this.#process.once('error', (error) => done(error.message))
      this.#process.once('exit', (code, signal) =>
        done(
          code === 0
            ? undefined
            : [
                signal ? `it was ended by ${signal}` : `it ended with code ${code}`,
                ...stderr.trim().split('\n'),
              ]
                .filter(Boolean)
                .join('\n    '),
        ),
      )
    })
  }

  /** Resolves when the process has ended with code 0. Rejects if it ends in another way. */
  async ended(): Promise<void> {
    const how = await this.#exited
    if (how !== undefined) throw new Error(`the child process failed: ${how}`)
  }

  stop(): void {
    this.#process.kill('SIGSTOP')
  }

  resume(): void {
    this.#process.kill('SIGCONT')
  }

  /** Resolves when the process has ended. */
  async kill(): Promise<void> {
    if (this.#hasEnded) return
    this.#process.kill('SIGKILL')
    await withTimeout(this.#exited, MAX_END_MS, () => {
      throw new ExplorationError(`The child process ${this.#process.pid} does not end.`, 'stalled')
    })
  }
}
