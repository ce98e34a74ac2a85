import type { TestSession } from '../explore/session/test-session.js'
import type { GatedSession } from '../gate/gated-session.js'

/** True if these sessions hold locks that others may wait for. */
export async function haveLocks(
  testSession: TestSession,
  sessions: readonly GatedSession[],
): Promise<boolean> {
  const pids = sessions.map(({ pid }) => pid).join()
  const held = await testSession.query(
    `select from pg_catalog.pg_locks where pid = any ('{${pids}}') and granted and locktype <> 'virtualxid'`,
  )
  return held.length > 0
}

/** The timeout after which the server ends these idle transactions. Undefined if there is none. */
export async function findIdleTimeout(sessions: readonly GatedSession[]): Promise<string | undefined> {
  for (const session of sessions) {
    if (session.status !== 'T' || session.state === 'running') continue
    const { rows } = await session.execute(
      `select pg_catalog.current_setting('idle_in_transaction_session_timeout'), pg_catalog.current_setting('transaction_timeout', true)`,
    )
    const limit = rows[0]?.find((value) => value !== null && value !== '' && value !== '0')
    if (limit) return limit
  }
  return undefined
}
