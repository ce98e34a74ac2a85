import type { CrashMode } from '../../fault.js'
import type { CrashPoint } from '../report.js'
import type { Cell } from './cells.js'

/** What is done in each mode. */
export const MODE_WORDS: Readonly<Record<CrashMode, string>> = {
  crash: 'the process is gone, and the server has noticed',
  error: 'the statement fails',
  'half-open': 'the process is gone, and the server has not noticed',
  zombie: 'the process stands still until another has taken over, and then goes on',
  server: 'the server is gone, and comes back',
  process: 'a real process is killed or stopped',
}

/** How `run` itself ended. */
export const RUN_WORDS: Readonly<Record<CrashPoint['run'], string>> = {
  fulfilled: 'returned',
  rejected: 'threw',
  died: 'died',
  hangs: 'hangs',
}

export const cellName = ({ mode, place: { side, statement } }: Cell): string =>
  `${mode} ${side} statement ${statement}`

/** What tells a point from the others of its cell. */
export function pointName({ fault }: CrashPoint): string {
  if (!fault) return 'with nothing done to it'
  const { code, signal, again } = fault
  if (again) return `and again ${again.side} ${again.statement} of its recovery`
  return code ?? signal ?? 'once'
}

/** Ways of recovery that are not its own have a sign in place of a letter. */
export const PATH_SIGNS: Readonly<Record<string, string>> = { 'from the start': '↺', 'nothing to do': '∅' }
