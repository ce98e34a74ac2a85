import type { Column } from '../../fault.js'
import type { CrashPoint } from '../report.js'
import type { Cell } from './cells.js'

/** What is done in each column. */
export const COLUMN_WORDS: Readonly<Record<Column, string>> = {
  crash: 'the process is gone, and the server has noticed',
  'crash twice': 'the process is gone, and so is one that recovers after it',
  error: 'the statement fails, or its connection ends',
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

export const cellName = ({ column, place: { side, statement } }: Cell): string =>
  `${column} ${side} statement ${statement}`

/** What tells a point from the others of its cell. */
export function pointName({ fault }: CrashPoint): string {
  if (!fault) return 'with nothing done to it'
  const { code, signal, again } = fault
  if (again) return `and again ${again.side} ${again.statement} of its recovery`
  return code ?? signal ?? 'once'
}

/** Ways of recovery that are not its own have a sign in place of a letter. */
export const PATH_SIGNS: Readonly<Record<string, string>> = { 'from the start': '↺', 'nothing to do': '∅' }
