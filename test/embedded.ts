import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished } from 'vitest'
import type { EmbeddedOptions } from '../src/postgres/embedded/embedded-options.js'
import { endProcesses, serversOf, supervisorsOf } from './processes.js'
import { until } from './until.js'

/** A folder for an embedded server, gone after the test with all that uses it. */
export function newFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'embedded-'))
  chmodSync(folder, 0o755)
  onTestFinished(async () => {
    await endProcesses(folder)
    rmSync(folder, { recursive: true, force: true })
  })
  return folder
}

export interface SpawnOptions {
  readonly env?: NodeJS.ProcessEnv
  readonly uid?: number
  readonly gid?: number
  readonly cwd?: string
  readonly program?: string
}

interface Answer {
  readonly ready?: boolean
  readonly id?: number
  readonly rows?: Record<string, unknown>[]
  readonly error?: string
  readonly opened?: { readonly url: string; readonly steps: string[]; readonly elapsedMs: number }
  readonly failed?: { readonly reason?: string; readonly message: string; readonly code?: string }
}

/** A process of its own that has opened Dibs on an embedded server. */
export class Opener {
  readonly #child: ChildProcess
  #requests = 0
  /** Set once it has opened. */
  url = ''

  private constructor(child: ChildProcess) {
    this.#child = child
  }

  static spawn(options: EmbeddedOptions | undefined, spawning: SpawnOptions = {}): Opener {
    const program = spawning.program ?? join(import.meta.dirname, 'children/open-embedded.mjs')
    const { DATABASE_URL: _, ...inherited } = process.env
    const child = fork(program, [JSON.stringify({ options })], {
      ...spawning,
      env: { ...inherited, ...spawning.env },
      execArgv: [],
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    })
    onTestFinished(() => {
      child.kill('SIGKILL')
    })
    return new Opener(child)
  }

  static async open(options: EmbeddedOptions, spawning?: SpawnOptions): Promise<Opener> {
    const opener = Opener.spawn(options, spawning)
    await opener.opened()
    return opener
  }

  /** A process that has loaded all it needs, and opens when it is told to. */
  static async prepare(options: EmbeddedOptions): Promise<Opener> {
    const opener = Opener.spawn(options, { env: { DIBS_TEST_WAIT: '1' } })
    await opener.#answer(({ ready }) => ready === true)
    return opener
  }

  async openNow(): Promise<void> {
    const opened = this.opened()
    this.#child.send({ open: true })
    await opened
  }

  async opened(): Promise<NonNullable<Answer['opened']>> {
    const { opened, failed } = await this.#answer(({ opened, failed }) => Boolean(opened || failed))
    if (opened) {
      this.url = opened.url
      return opened
    }
    throw new Error(`did not open: ${failed?.message}`)
  }

  async failure(): Promise<NonNullable<Answer['failed']>> {
    const { failed } = await this.#answer(({ opened, failed }) => Boolean(opened || failed))
    if (failed) return failed
    throw new Error('it opened, though it should not have')
  }

  async query(sql: string): Promise<Record<string, unknown>[]> {
    const id = ++this.#requests
    this.#child.send({ id, sql })
    const { rows, error } = await this.#answer((answer) => answer.id === id)
    if (rows) return rows
    throw new Error(error)
  }

  get pid(): number {
    return this.#child.pid ?? 0
  }

  /** Asks until it is answered, as a process does whose server comes back. */
  queryUntilAnswered(sql: string): Promise<Record<string, unknown>[]> {
    return until(() => this.query(sql).catch(() => undefined), `an answer to ${sql}`, 60_000)
  }

  async close(): Promise<void> {
    const gone = once(this.#child, 'exit')
    this.#child.send({ close: true })
    await gone
  }

  /** Tells it to do nothing more; resolves with its exit code when it ends by itself. */
  async idle(): Promise<number | null> {
    const gone = once(this.#child, 'exit')
    this.#child.send({ idle: true })
    const [code] = await gone
    return code
  }

  async kill(signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    const gone = once(this.#child, 'exit')
    this.#child.kill(signal)
    await gone
  }

  #answer(fits: (answer: Answer) => boolean): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const receive = (answer: Answer): void => {
        if (!fits(answer)) return
        this.#child.off('message', receive).off('exit', end)
        resolve(answer)
      }
      const end = (code: number | null, signal: string | null): void =>
        reject(new Error(`The process ended (${code ?? signal}) without an answer.`))
      this.#child.on('message', receive).once('exit', end)
    })
  }
}

/** Waits until nothing runs for a folder any more. */
export function untilStopped(folder: string): Promise<true> {
  return until(
    () => supervisorsOf(folder).length === 0 && serversOf(folder).length === 0,
    `supervisor and server of ${folder} to end`,
    30_000,
  )
}

export const write = async (by: Opener): Promise<void> => {
  await by.query('create table if not exists kept (at timestamptz default now())')
  await by.query('insert into kept default values')
}

/** The number of calls of `write`. */
export const count = async (by: Opener): Promise<number> =>
  Number((await by.query('select count(*) as n from kept'))[0]?.n)

export const kill = (pids: readonly number[], signal: NodeJS.Signals = 'SIGKILL'): void => {
  expect(pids.length).toBeGreaterThan(0)
  for (const pid of pids) process.kill(pid, signal)
}

export const one = (pids: readonly number[]): number => {
  expect(pids).toHaveLength(1)
  return Number(pids[0])
}
