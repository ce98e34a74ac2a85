import type { InjectedError } from '../gate/session-options.js'

/** The server's message for each SQLSTATE. */
const MESSAGES: Readonly<Record<string, string>> = {
  '40001': 'could not serialize access due to concurrent update',
  '40P01': 'deadlock detected',
  '55P03': 'canceling statement due to lock timeout',
  '57P01': 'terminating connection due to administrator command',
  '08006': 'server closed the connection unexpectedly',
}

/** The default of the option `errors`. */
export const DEFAULT_CODES: readonly string[] = ['40001', '40P01', '57P01', '08006', '55P03']

/** @param replay identifies the point, for a reader of a log */
export const injectedError = (code: string, replay: string): InjectedError => ({
  code,
  message: `${MESSAGES[code] ?? 'an error'} (injected, ${replay})`,
})

/** True for class 08, a lost connection. The server sends no message then, and each driver raises an error of its own. */
export const isSilent = (code: string): boolean => code.startsWith('08')

/**
 * True if the error ends the connection. Only such an error can follow a successful execution. Any other error rolls the
 * statement back, so an error `after` the statement would equal one `before` it.
 */
export const endsConnection = (code: string): boolean => code.startsWith('57P') || code.startsWith('08')
