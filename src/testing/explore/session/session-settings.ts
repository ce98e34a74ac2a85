import type { ControlConnection } from './control-connection.js'
import type { TestSessionOptions } from './test-session-options.js'

/** The `deadlock_timeout` of sessions that cannot close a cycle of waits: a fallback, if the closing session has not checked. */
export const LATE_DEADLOCK_CHECK_MS = 1_000

/** The settings of an actor's session. All timeouts are off, since only the schedule may decide what happens. */
export function sessionSettings(
  { serverVersion, setsDeadlockTimeout }: Pick<ControlConnection, 'serverVersion' | 'setsDeadlockTimeout'>,
  { isolation, keepsIdleTimeouts = false }: Pick<TestSessionOptions, 'isolation' | 'keepsIdleTimeouts'> = {},
): Record<string, string> {
  return {
    lock_timeout: '0',
    statement_timeout: '0',
    ...(keepsIdleTimeouts ? {} : { idle_in_transaction_session_timeout: '0' }),
    idle_session_timeout: '0',
    ...(serverVersion >= 17_00_00 && !keepsIdleTimeouts ? { transaction_timeout: '0' } : {}),
    ...(setsDeadlockTimeout ? { deadlock_timeout: String(LATE_DEADLOCK_CHECK_MS) } : {}),
    ...(isolation ? { default_transaction_isolation: isolation } : {}),
  }
}
