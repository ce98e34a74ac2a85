import { spawn } from 'node:child_process'
import { closeSync, existsSync, fstatSync, ftruncateSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { EmbeddedServerError } from '../../errors.js'
import { explainFailure } from './explain-failure.js'
import { openLog, readOwnFile } from './own-file.js'
import type { SupervisorConfig } from './supervisor.js'

export interface SpawnedSupervisor {
  readonly hasEnded: boolean
  /** Why the supervisor failed, if it did. */
  readonly failure: EmbeddedServerError | undefined
}

const LOG_BYTES = 1_000_000

/** Finds the program of the supervisor. A bundler that makes one file leaves it out. */
export function findSupervisorProgram(folder: string): string {
  const program = import.meta.url ? fileURLToPath(new URL('./supervisor-process.js', import.meta.url)) : ''
  if (existsSync(program)) return program
  throw new EmbeddedServerError(
    'A program of Dibs, supervisor-process.js, is missing. If a bundler put Dibs into one file with your code, tell it to leave the package dibs outside; or give the URL of a PostgreSQL that runs.',
    'no-binaries',
    folder,
  )
}

/** Starts a supervisor that outlives this process. The new supervisor ends at once if another one was first. */
export function spawnSupervisor({ folder, ...rest }: SupervisorConfig): SpawnedSupervisor {
  const program = findSupervisorProgram(folder)
  const file = join(folder, 'supervisor.log')
  const log = openLog(file, folder)
  if (fstatSync(log).size > LOG_BYTES) ftruncateSync(log)
  const from = fstatSync(log).size
  const child = spawn(process.execPath, [program, folder], {
    cwd: '/',
    detached: true, // Ctrl-C goes to the process group of the terminal, and must not reach the supervisor
    stdio: ['ignore', log, log],
    env: { ...supervisorEnvironment(), DIBS_SUPERVISOR: JSON.stringify(rest) }, // not in the command line, which other users can read
  })
  closeSync(log)
  child.unref()
  const supervisor = { hasEnded: false, failure: undefined as EmbeddedServerError | undefined }
  child.once('error', (error) => {
    supervisor.hasEnded = true
    supervisor.failure = explainFailure(error.message, folder)
  })
  child.once('exit', (code, signal) => {
    supervisor.hasEnded = true
    if (code === 0 || signal === 'SIGKILL' || signal === 'SIGTERM') return
    supervisor.failure = explainFailure(
      readFrom(file, folder, from) || `its supervisor ended with ${code ?? signal}`,
      folder,
      file,
    )
  })
  return supervisor
}

function readFrom(file: string, folder: string, from: number): string {
  try {
    return readOwnFile(file, folder)?.subarray(from).toString() ?? ''
  } catch {
    return '' // the file was replaced after its folder was checked
  }
}

/** Without NODE_OPTIONS: the debugger and the loaders of the application are not for the supervisor. */
function supervisorEnvironment(): NodeJS.ProcessEnv {
  const names = ['PATH', 'HOME', 'XDG_CACHE_HOME', 'TMPDIR', 'TZ', 'LD_LIBRARY_PATH']
  return Object.fromEntries(names.flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])))
}
