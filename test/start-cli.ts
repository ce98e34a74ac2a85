import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { expect, onTestFinished } from 'vitest'
import { directUrl } from './database.js'

/** Stands in every URL that tests of the command line give, so that they see where it comes out. */
export const password = new URL(directUrl).password || 'hunter2'

/** The server of this run, by a URL with a password. */
export function urlWithPassword(url: string = directUrl): string {
  const target = new URL(url)
  target.password = password
  return target.href
}

const main = join(import.meta.dirname, '../dist/cli.js')

export interface StartedCli {
  /** The output so far. */
  readonly output: string
  readonly errors: string
  /** Its exit code, or the signal that ended it. */
  readonly exit: Promise<number | NodeJS.Signals>
  kill(signal: NodeJS.Signals): void
  /** Resolves once the output has it; fails if it ends without. */
  says(pattern: RegExp): Promise<RegExpMatchArray>
}

/** Runs the built `dibs`, until the test has finished at the latest. */
export function startCli(args: readonly string[], environment: NodeJS.ProcessEnv = {}): StartedCli {
  const child = spawn(process.execPath, [main, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
    env: { ...process.env, DATABASE_URL: undefined, ...environment },
  })
  let output = ''
  let errors = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text
  })
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    errors += text
  })
  // 'close' comes after the last of the output, 'exit' may not.
  const exit = once(child, 'close').then(() => child.exitCode ?? child.signalCode ?? 'SIGKILL')
  onTestFinished(async () => {
    child.kill('SIGKILL')
    await exit
    expect(output + errors).not.toContain(password)
  })
  return {
    get output() {
      return output
    },
    get errors() {
      return errors
    },
    exit,
    kill: (signal) => void child.kill(signal),
    says: (pattern) =>
      new Promise((resolve, reject) => {
        const check = (): void => {
          const match = output.match(pattern)
          if (!match) return
          child.stdout.off('data', check)
          resolve(match)
        }
        child.stdout.on('data', check)
        check()
        void exit.then((code) =>
          reject(new Error(`It ended (${code}) without ${pattern}: ${output}${errors}`)),
        )
      }),
  }
}
