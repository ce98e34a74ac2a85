import { execFileSync, spawn } from 'node:child_process'
import {
  closeSync,
  fstatSync,
  linkSync,
  lstatSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
} from 'node:fs'
import { join } from 'node:path'
import { sleep } from '../sleep.js'
import { childEnvironment } from './child-environment.js'
import type { ServerSettings } from './embedded-options.js'
import { explainFailure } from './explain-failure.js'
import type { Home } from './home.js'
import { openLog, readOwn } from './own-file.js'
import { processIdentity, worksIn } from './process-identity.js'
import { toArguments } from './settings.js'

/** A server's first process, as its file `postmaster.pid` tells of it. */
export interface Postmaster {
  readonly pid: number
  readonly port: number
  readonly status: 'starting' | 'stopping' | 'ready' | 'standby' | undefined
  /** Of this process, not of a later one with its number. */
  readonly identity: string | undefined
}

const POLL_MS = 20
/** Replaying what a crash left may take long. */
const START_MS = 300_000
/** How long what is in the way of a start, but goes away by itself, may take to do so. */
const PASSES_MS = 10_000
const LOG_BYTES = 5_000_000

/** The server that runs on a data folder, if there is one. */
export function findPostmaster(data: string): Postmaster | undefined {
  const found = readPidFile(data)
  return found?.identity && isServerOf(found.pid, data) ? found : undefined
}

function readPidFile(data: string): Postmaster | undefined {
  try {
    const lines = readFileSync(join(data, 'postmaster.pid'), 'utf8').split('\n')
    const pid = Math.abs(Number(lines[0]))
    const status = lines[7]?.trim() as Postmaster['status']
    const identity = pid > 0 ? processIdentity(pid) : undefined
    return { pid, port: Number(lines[3]), status: status || undefined, identity }
  } catch {
    return undefined
  }
}

/** Every process of a server works in its data folder, so a number that went to another program does not deceive. */
function isServerOf(pid: number, data: string): boolean {
  const isThere = worksIn(pid, data)
  if (isThere !== undefined) return isThere
  try {
    return execFileSync('ps', ['-p', String(pid), '-o', 'command='], { encoding: 'utf8' }).includes(data)
  } catch {
    return false
  }
}

/** Starts a server and waits until it can be asked; throws what it said if it ends instead. */
export async function startPostmaster(
  home: Home,
  {
    bin,
    port,
    settings,
    log,
  }: { bin: string; port: number; settings: ServerSettings; log: string | undefined },
): Promise<Postmaster> {
  const startedAt = performance.now()
  for (;;) {
    removeStalePidFile(home.data)
    const said = await startOnce(home, join(bin, 'postgres'), toArguments(home.data, port, settings))
    if (typeof said !== 'string') return said
    // Processes of a server that was killed notice it soon, and a lock file that another is writing is soon whole.
    const passes =
      /pre-existing shared memory block .* still in use|bogus data in lock file|lock file .* is empty/
    if (!passes.test(said) || performance.now() - startedAt > PASSES_MS)
      throw explainFailure(said, home.folder, log)
    await sleep(100)
  }
}

/** The server, or what it said before it ended. */
async function startOnce(home: Home, program: string, args: string[]): Promise<Postmaster | string> {
  if (sizeOf(home.log) > LOG_BYTES) renameSync(home.log, `${home.log}.1`)
  const log = openLog(home.log, home.folder)
  const from = fstatSync(log).size
  const { uid, gid } = home.user ?? {}
  // Not through a pipe, and a group of its own: it outlives us if we are killed.
  const child = spawn(program, args, {
    uid,
    gid,
    cwd: home.data,
    env: childEnvironment(),
    detached: true,
    stdio: ['ignore', log, log],
  })
  closeSync(log)
  child.unref() // nor do we wait for its end
  let ended = false
  let failure = ''
  child.once('error', (error) => {
    ended = true
    failure = error.message
  })
  child.once('exit', () => {
    ended = true
  })
  const deadline = performance.now() + START_MS
  while (!ended) {
    const found = readPidFile(home.data)
    if (found?.pid === child.pid && (found?.status === 'ready' || found?.status === 'standby')) return found
    if (performance.now() > deadline) {
      child.kill('SIGQUIT')
      return `It was not ready after ${START_MS / 1000} seconds.`
    }
    await sleep(POLL_MS)
  }
  return failure || (readOwn(home.log, home.folder)?.subarray(from).toString() ?? '')
}

const sizeOf = (file: string): number => lstatSync(file, { throwIfNoEntry: false })?.size ?? 0

/**
 * Removes a `postmaster.pid` that no server of ours stands behind. PostgreSQL takes its number for a running server if
 * any process of this user has it: another program after a restart of a container, or the dead server itself where
 * nobody asked how it ended. It also looks at the shared memory, which keeps two servers apart even if the file went
 * wrongly.
 */
function removeStalePidFile(data: string): void {
  const file = join(data, 'postmaster.pid')
  const written = statSync(file, { throwIfNoEntry: false })
  const found = readPidFile(data)
  if (!written || (found && isServerOf(found.pid, data))) return
  // One that another keeper's server just makes is empty for a moment.
  if (!found?.pid && Date.now() - written.mtimeMs < 5_000) return
  // Taken away first and looked at again: a server that another keeper started just now gets its file back.
  const taken = `${file}.stale.${process.pid}`
  try {
    renameSync(file, taken)
    if (isServerOf(pidIn(taken), data)) linkSync(taken, file)
  } catch {
    // Another took it.
  }
  rmSync(taken, { force: true })
}

const pidIn = (file: string): number => Math.abs(Number(readFileSync(file, 'utf8').split('\n')[0]))

/**
 * Ends a server: politely to those connected for a while, then less so. Whatever was committed stays; `discard`
 * skips what would only save the next start some work.
 */
export async function stopPostmaster(server: Postmaster, { discard }: { discard: boolean }): Promise<void> {
  const ways: [signal: NodeJS.Signals, forMs: number][] = [
    ['SIGQUIT', 10_000], // immediate shutdown
    ['SIGKILL', 10_000],
  ]
  if (!discard) ways.unshift(['SIGINT', 30_000]) // fast shutdown
  for (const [signal, forMs] of ways) {
    const deadline = performance.now() + forMs
    signalPostmaster(server, signal)
    while (performance.now() < deadline) {
      if (!isRunning(server)) return
      await sleep(POLL_MS)
    }
  }
}

/** A shutdown that waits for everyone to leave, as SIGTERM asks for, becomes one that does not. */
export function hurryPostmaster(server: Postmaster): void {
  if (server.status === 'stopping') signalPostmaster(server, 'SIGINT')
}

const isRunning = ({ pid, identity }: Postmaster): boolean =>
  identity !== undefined && processIdentity(pid) === identity

function signalPostmaster(server: Postmaster, signal: NodeJS.Signals): void {
  try {
    if (isRunning(server)) process.kill(server.pid, signal)
  } catch {
    // It ended just now.
  }
}
