import type { Stage } from '../explore/stage/stage.js'
import type { GatedSession } from '../gate/gated-session.js'

/** These sessions hold something that others may want. */
export async function holdLocks(stage: Stage, sessions: readonly GatedSession[]): Promise<boolean> {
  const pids = sessions.map(({ pid }) => pid).join()
  const held = await stage.ask(
    `select from pg_catalog.pg_locks where pid = any ('{${pids}}') and granted and locktype <> 'virtualxid'`,
  )
  return held.length > 0
}

/** After how long the server itself ends transactions like these, which stand still. */
export async function idleLimit(sessions: readonly GatedSession[]): Promise<string | undefined> {
  for (const session of sessions) {
    if (session.status !== 'T' || session.state === 'running') continue
    const { rows } = await session.tell(
      `select pg_catalog.current_setting('idle_in_transaction_session_timeout'), pg_catalog.current_setting('transaction_timeout', true)`,
    )
    const limit = rows[0]?.find((value) => value !== null && value !== '' && value !== '0')
    if (limit) return limit
  }
  return undefined
}
