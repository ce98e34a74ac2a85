import type { InjectedError } from '../gate/gated-session.js'

/** What a server says with each of these. */
const MESSAGES: Readonly<Record<string, string>> = {
  '40001': 'could not serialize access due to concurrent update',
  '40P01': 'deadlock detected',
  '55P03': 'canceling statement due to lock timeout',
  '57P01': 'terminating connection due to administrator command',
  '08006': 'server closed the connection unexpectedly',
}

/** What statements fail with unless the options say otherwise. */
export const DEFAULT_CODES: readonly string[] = ['40001', '40P01', '57P01', '08006', '55P03']

/** @param replay where it is injected, for whoever finds it in a log */
export const injectedError = (code: string, replay: string): InjectedError => ({
  code,
  message: `${MESSAGES[code] ?? 'an error'} (injected, ${replay})`,
})

/** Class 08 is a connection that breaks. A server that is gone says nothing: drivers find it out, each in its own words. */
export const isSilent = (code: string): boolean => code.startsWith('08')

/**
 * The connection ends with it. Only such an error can come after the server has executed the statement: any other takes
 * back what it did, as if it had come before.
 */
export const endsConnection = (code: string): boolean => code.startsWith('57P') || code.startsWith('08')
