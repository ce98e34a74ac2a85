import { InvalidInputError } from '../../errors.js'
import { endsConnection } from './injected-errors.js'

/**
 * - `crash`: the process is gone, and the server has noticed;
 * - `error`: the statement fails, with one SQLSTATE after the other;
 * - `half-open`: the process is gone, and the server has not noticed;
 * - `zombie`: the process stands still until another has taken over, and then goes on;
 * - `server`: the server is gone and comes back, at COMMIT alone;
 * - `process`: a real process is killed or stopped, at some of the points.
 */
export type CrashMode = 'crash' | 'error' | 'half-open' | 'zombie' | 'server' | 'process'

export const MODES: readonly CrashMode[] = ['crash', 'error', 'half-open', 'zombie', 'server', 'process']

/** Those that need nothing but the database. */
export const DEFAULT_MODES: readonly CrashMode[] = ['crash', 'error', 'half-open', 'zombie']

/** Where in a run: before a statement is sent, or after the server has executed it and before the answer is seen. */
export interface Place {
  readonly side: 'before' | 'after'
  /** From 1. */
  readonly statement: number
}

/** What is told apart in a table: the modes, and crashes of which a second one came during recovery. */
export type Column = CrashMode | 'crash twice'

export const COLUMNS: readonly Column[] = ['crash', 'crash twice', ...MODES.slice(1)]

export type Signal = 'SIGKILL' | 'SIGSTOP'

/** What happens, and where. */
export interface Fault extends Place {
  readonly mode: CrashMode
  /** Of mode `error`: the SQLSTATE. */
  readonly code?: string | undefined
  /** Of mode `process`. */
  readonly signal?: Signal | undefined
  /** Where in the recovery after it a second crash comes. */
  readonly again?: Place | undefined
}

export const columnOf = ({ mode, again }: Fault): Column => (again ? 'crash twice' : mode)

/** The replay string of a run without a fault. */
const NO_FAULT = 'none'

const FORM =
  /^(crash|error|half-open|zombie|server|process):(before|after)-(\d{1,4})(?::([0-9A-Z]{5}))?(?::(SIGKILL|SIGSTOP))?(?::again-(before|after)-(\d{1,4}))?$/

/** The string of a printout: `crash:after-3`, `error:before-2:40001`. */
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

/** The identity of the loop, which a printout adds, says nothing of the fault. */
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
