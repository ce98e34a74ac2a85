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
import { childEnvironment } from './child-environment.js'
import type { ServerSettings } from './embedded-options.js'
import { explainFailure } from './explain-failure.js'
import { openLog, readOwnFile } from './own-file.js'
import { poll } from './poll.js'
import { processIdentity, worksIn } from './process-identity.js'
import type { ServerPaths } from './server-paths.js'
import { toArguments } from './settings.js'

/** The first process of a server, as its file `postmaster.pid` describes it. */
export interface Postmaster {
  readonly pid: number
  readonly port: number
  readonly status: 'starting' | 'stopping' | 'ready' | 'standby' | undefined
  /** Distinguishes the process from a later one with the same pid. */
  readonly identity: string | undefined
}

const POLL_MS = 20
/** Recovery after a crash may take long. */
const START_MS = 300_000
/** How long a temporary obstacle to the start may last. */
const PASSES_MS = 10_000
const LOG_BYTES = 5_000_000

/** Processes of a killed server end soon, and a lock file that another process writes is complete soon. */
const PASSING =
  /pre-existing shared memory block .* still in use|bogus data in lock file|lock file .* is empty/

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

/**
 * True if a process belongs to the server on `data`: all of its processes have the data folder as their working
 * directory. Another program with the same pid does not.
 */
function isServerOf(pid: number, data: string): boolean {
  const isThere = worksIn(pid, data)
  if (isThere !== undefined) return isThere
  try {
    return execFileSync('ps', ['-p', String(pid), '-o', 'command='], { encoding: 'utf8' }).includes(data)
  } catch {
    return false
  }
}

/** Starts a server and waits until it is ready. If it ends instead, the error has its output. */
export async function startPostmaster(
  home: ServerPaths,
  {
    bin,
    port,
    settings,
    log,
  }: { bin: string; port: number; settings: ServerSettings; log: string | undefined },
): Promise<Postmaster> {
  let output = ''
  const start = async (): Promise<Postmaster | undefined> => {
    removeStalePidFile(home.data)
    const started = await startOnce(home, join(bin, 'postgres'), toArguments(home.data, port, settings))
    if (typeof started !== 'string') return started
    output = started
    if (!PASSING.test(output)) throw explainFailure(output, home.folder, log)
    return undefined
  }
  const started = await poll(start, { everyMs: 100, withinMs: PASSES_MS })
  if (!started) throw explainFailure(output, home.folder, log)
  return started
}

/** Returns the server, or its output if it ended. */
async function startOnce(home: ServerPaths, program: string, args: string[]): Promise<Postmaster | string> {
  if (sizeOf(home.log) > LOG_BYTES) renameSync(home.log, `${home.log}.1`)
  const log = openLog(home.log, home.folder)
  const from = fstatSync(log).size
  const { uid, gid } = home.user ?? {}
  // No pipe, and a separate process group: the server survives if this process is killed.
  const child = spawn(program, args, {
    uid,
    gid,
    cwd: home.data,
    env: childEnvironment(),
    detached: true,
    stdio: ['ignore', log, log],
  })
  closeSync(log)
  child.unref()
  let ended = false
  let failure = ''
  child.once('error', (error) => {
    ended = true
    failure = error.message
  })
  child.once('exit', () => {
    ended = true
  })
  const readReady = (): Postmaster | undefined => {
    const found = readPidFile(home.data)
    const isReady = found?.status === 'ready' || found?.status === 'standby'
    return isReady && found.pid === child.pid ? found : undefined
  }
  const state = await poll(() => (ended ? 'ended' : readReady()), { everyMs: POLL_MS, withinMs: START_MS })
  if (state === undefined) {
    child.kill('SIGQUIT')
    return `It was not ready after ${START_MS / 1000} seconds.`
  }
  if (state !== 'ended') return state
  return failure || (readOwnFile(home.log, home.folder)?.subarray(from).toString() ?? '')
}

const sizeOf = (file: string): number => lstatSync(file, { throwIfNoEntry: false })?.size ?? 0

/**
 * Removes a `postmaster.pid` without a running server. PostgreSQL believes that the server runs if any process of this
 * user has the pid. After a restart of a container, that may be another program or a zombie. PostgreSQL also checks the
 * shared memory, which keeps two servers apart even if the file is removed by mistake.
 */
function removeStalePidFile(data: string): void {
  const file = join(data, 'postmaster.pid')
  const written = statSync(file, { throwIfNoEntry: false })
  const found = readPidFile(data)
  if (!written || (found && isServerOf(found.pid, data))) return
  // A file that another supervisor's server is just writing is empty for a moment.
  if (!found?.pid && Date.now() - written.mtimeMs < 5_000) return
  // Renamed first and checked again: a server that another supervisor has just started gets its file back.
  const taken = `${file}.stale.${process.pid}`
  try {
    renameSync(file, taken)
    if (isServerOf(pidIn(taken), data)) linkSync(taken, file)
  } catch {
    // Another process renamed it.
  }
  rmSync(taken, { force: true })
}

const pidIn = (file: string): number => Math.abs(Number(readFileSync(file, 'utf8').split('\n')[0]))

/**
 * Stops a server: with a fast shutdown, then an immediate one, then SIGKILL. Committed data stays. `discard` skips the fast
 * shutdown, which only saves the next start some work.
 */
export async function stopPostmaster(server: Postmaster, { discard }: { discard: boolean }): Promise<void> {
  const ways: [signal: NodeJS.Signals, forMs: number][] = [
    ['SIGQUIT', 10_000], // immediate shutdown
    ['SIGKILL', 10_000],
  ]
  if (!discard) ways.unshift(['SIGINT', 30_000]) // fast shutdown
  for (const [signal, forMs] of ways) {
    signalPostmaster(server, signal)
    if (await poll(() => !isRunning(server) || undefined, { everyMs: POLL_MS, withinMs: forMs })) return
  }
}

/** Turns a smart shutdown (SIGTERM), which waits for all sessions to end, into a fast one. */
export function hastenShutdown(server: Postmaster): void {
  if (server.status === 'stopping') signalPostmaster(server, 'SIGINT')
}

const isRunning = ({ pid, identity }: Postmaster): boolean =>
  identity !== undefined && processIdentity(pid) === identity

function signalPostmaster(server: Postmaster, signal: NodeJS.Signals): void {
  try {
    if (isRunning(server)) process.kill(server.pid, signal)
  } catch {
    // The process has just ended.
  }
}
