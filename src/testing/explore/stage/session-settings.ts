import type { Control } from './control.js'
import type { StageOptions } from './stage-options.js'

/** Whoever cannot close a circle of waits looks for one only if those who can have failed to. */
export const LATE_MS = 1_000

/** What every session of an actor begins with: no timeout may decide what happens, only the schedule. */
export function sessionSettings(
  { serverVersion, setsDeadlockTimeout }: Pick<Control, 'serverVersion' | 'setsDeadlockTimeout'>,
  { isolation, keepsIdleTimeouts = false }: Pick<StageOptions, 'isolation' | 'keepsIdleTimeouts'> = {},
): Record<string, string> {
  return {
    lock_timeout: '0',
    statement_timeout: '0',
    ...(keepsIdleTimeouts ? {} : { idle_in_transaction_session_timeout: '0' }),
    idle_session_timeout: '0',
    ...(serverVersion >= 17_00_00 && !keepsIdleTimeouts ? { transaction_timeout: '0' } : {}),
    ...(setsDeadlockTimeout ? { deadlock_timeout: String(LATE_MS) } : {}),
    ...(isolation ? { default_transaction_isolation: isolation } : {}),
  }
}
