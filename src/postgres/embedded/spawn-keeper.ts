import { spawn } from 'node:child_process'
import { closeSync, existsSync, fstatSync, ftruncateSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { EmbeddedServerError } from '../../errors.js'
import { explainFailure } from './explain-failure.js'
import type { KeeperConfig } from './keeper.js'
import { openLog, readOwn } from './own-file.js'

export interface SpawnedKeeper {
  readonly hasEnded: boolean
  /** Why it ended, if that was not for want of work. */
  readonly failure: EmbeddedServerError | undefined
}

const LOG_BYTES = 1_000_000

/** A bundler that puts everything into one file leaves it out. */
export function findKeeperProgram(folder: string): string {
  const program = import.meta.url ? fileURLToPath(new URL('./keeper-process.js', import.meta.url)) : ''
  if (existsSync(program)) return program
  throw new EmbeddedServerError(
    'A program of Dibs, keeper-process.js, is missing. If a bundler put Dibs into one file with your code, tell it to leave the package dibs outside; or give the URL of a PostgreSQL that runs.',
    'no-binaries',
    folder,
  )
}

/** Starts a keeper that lives on when this process ends. Another may be first; then it ends at once. */
export function spawnKeeper({ folder, ...rest }: KeeperConfig): SpawnedKeeper {
  const program = findKeeperProgram(folder)
  const file = join(folder, 'keeper.log')
  const log = openLog(file, folder)
  if (fstatSync(log).size > LOG_BYTES) ftruncateSync(log)
  const from = fstatSync(log).size
  const child = spawn(process.execPath, [program, folder], {
    cwd: '/',
    detached: true, // Ctrl-C goes to the whole group of the terminal, and must not reach it
    stdio: ['ignore', log, log],
    env: { ...keeperEnvironment(), DIBS_KEEPER: JSON.stringify(rest) }, // which nobody else can read
  })
  closeSync(log)
  child.unref()
  const keeper = { hasEnded: false, failure: undefined as EmbeddedServerError | undefined }
  child.once('error', (error) => {
    keeper.hasEnded = true
    keeper.failure = explainFailure(error.message, folder)
  })
  child.once('exit', (code, signal) => {
    keeper.hasEnded = true
    if (code === 0 || signal === 'SIGKILL' || signal === 'SIGTERM') return
    keeper.failure = explainFailure(
      readFrom(file, folder, from) || `its keeper ended with ${code ?? signal}`,
      folder,
      file,
    )
  })
  return keeper
}

function readFrom(file: string, folder: string, from: number): string {
  try {
    return readOwn(file, folder)?.subarray(from).toString() ?? ''
  } catch {
    return '' // it was replaced meanwhile
  }
}

/** No NODE_OPTIONS: a debugger's port or a loader of the application's is not for the keeper. */
function keeperEnvironment(): NodeJS.ProcessEnv {
  const names = ['PATH', 'HOME', 'XDG_CACHE_HOME', 'TMPDIR', 'TZ', 'LD_LIBRARY_PATH']
  return Object.fromEntries(names.flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])))
}
