import { InvalidInputError } from '../../errors.js'
import { endsConnection } from './injected-errors.js'

/**
 * - `crash`: the process is killed, and the server notices at once;
 * - `error`: the statement fails, with each SQLSTATE in turn;
 * - `half-open`: the process is killed, and the server does not notice;
 * - `zombie`: the process pauses until another has taken over, and then goes on;
 * - `server`: the server is shut down and starts again. Only at COMMIT;
 * - `process`: a real process is killed or paused, at some of the points.
 */
export type CrashMode = 'crash' | 'error' | 'half-open' | 'zombie' | 'server' | 'process'

export const MODES: readonly CrashMode[] = ['crash', 'error', 'half-open', 'zombie', 'server', 'process']

/** The modes that need only the database. */
export const DEFAULT_MODES: readonly CrashMode[] = ['crash', 'error', 'half-open', 'zombie']

/** A point of a run: before a statement is sent, or after the server has executed it and before the response arrives. */
export interface Place {
  readonly side: 'before' | 'after'
  /** The number of the statement, from 1. */
  readonly statement: number
}

/** A column of the table in a report: a mode, or a crash with a second crash during recovery. */
export type Column = CrashMode | 'crash twice'

export const COLUMNS: readonly Column[] = ['crash', 'crash twice', ...MODES.slice(1)]

export type Signal = 'SIGKILL' | 'SIGSTOP'

/** A fault and its point. */
export interface Fault extends Place {
  readonly mode: CrashMode
  /** For mode `error`: the SQLSTATE. */
  readonly code?: string | undefined
  /** For mode `process`: the signal to the process. */
  readonly signal?: Signal | undefined
  /** The point of a second crash, in the recovery. */
  readonly again?: Place | undefined
}

export const columnOf = ({ mode, again }: Fault): Column => (again ? 'crash twice' : mode)

/** The replay string of a run without a fault. */
const NO_FAULT = 'none'

const FORM =
  /^(crash|error|half-open|zombie|server|process):(before|after)-(\d{1,4})(?::([0-9A-Z]{5}))?(?::(SIGKILL|SIGSTOP))?(?::again-(before|after)-(\d{1,4}))?$/

/** Returns the replay string of a fault: `crash:after-3`, `error:before-2:40001`. */
export function encodeFault(fault: Fault | undefined): string {
  if (!fault) return NO_FAULT
  const { mode, side, statement, code, signal, again } = fault
  return [
    `${mode}:${side}-${statement}`,
    ...(code ? [code] : []),
    ...(signal ? [signal] : []),
    ...(again ? [`again-${again.side}-${again.statement}`] : []),
  ].join(':')
}

/** Reads a replay string. The suffix `@123abc` identifies the loop and is no part of the fault. */
export function decodeFault(text: string): Fault | undefined {
  const fault = text.replace(/@[0-9a-f]{6}$/, '')
  if (fault === NO_FAULT) return undefined
  const [, mode, side, statement, code, signal, againSide, again] = FORM.exec(fault) ?? []
  const isWhole =
    (mode === 'error') === Boolean(code) &&
    (mode === 'process') === Boolean(signal) &&
    (mode === 'crash' || !again) &&
    (side === 'before' || !code || endsConnection(code))
  if (!mode || !isWhole)
    throw new InvalidInputError(
      'replay',
      `must be the string of a printout, like crash:after-3 or error:before-2:40001, not ${JSON.stringify(text)}`,
    )
  return {
    mode: mode as CrashMode,
    side: side as Place['side'],
    statement: Number(statement),
    ...(code ? { code } : {}),
    ...(signal ? { signal: signal as Signal } : {}),
    ...(againSide ? { again: { side: againSide as Place['side'], statement: Number(again) } } : {}),
  }
}
