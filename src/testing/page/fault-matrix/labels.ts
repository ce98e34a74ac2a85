import type { Column } from '../../crash/fault.js'
import type { CrashPoint } from '../../crash/report/report.js'
import type { Cell } from './cells.js'

/** The fault of each column. */
export const COLUMN_WORDS: Readonly<Record<Column, string>> = {
  crash: 'the process is gone, and the server has noticed',
  'crash twice': 'the process is gone, and so is one that recovers after it',
  error: 'the statement fails, or its connection ends',
  'half-open': 'the process is gone, and the server has not noticed',
  zombie: 'the process stands still until another has taken over, and then goes on',
  server: 'the server is gone, and comes back',
  process: 'a real process is killed or stopped',
}

/** The end of `run`, in words. */
export const RUN_WORDS: Readonly<Record<CrashPoint['run'], string>> = {
  fulfilled: 'returned',
  rejected: 'threw',
  died: 'died',
  hangs: 'hangs',
}

export const cellName = ({ column, place: { side, statement } }: Cell): string =>
  `${column} ${side} statement ${statement}`

/** The name of a point among the points of its cell. */
export function pointName({ fault }: CrashPoint): string {
  if (!fault) return 'with nothing done to it'
  const { code, signal, again } = fault
  if (again) return `and again ${again.side} ${again.statement} of its recovery`
  return code ?? signal ?? 'once'
}

/** Recovery paths that need no fault have a sign in place of a letter. */
export const PATH_SIGNS: Readonly<Record<string, string>> = { 'from the start': '↺', 'nothing to do': '∅' }
