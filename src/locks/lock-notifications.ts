import type { Database } from '../postgres/database.js'
import type { LockOrigin } from '../postgres/events.js'
import { hashKey, templateOf } from '../postgres/key.js'
import { textArray } from '../postgres/text-values.js'
import { wakeupsOf } from '../postgres/wakeups.js'
import { awaitedLocks } from './lock-statements.js'

const ANSWER_MS = 5_000

/** The fields that events have about a lock. The name is not among them, because it may contain personal data. */
export const lockOrigin = (database: Database, name: string): LockOrigin => ({
  ...database.origin,
  template: templateOf(name),
  keyHash: hashKey(name),
})

/** The notification topic of a lock. A release notifies the calls that wait for the lock. */
export const lockTopic = (name: string): string => `lock:${name}`

/** Notifies the calls that wait for these locks, if there are any. Returns at once and never fails, because waiting calls poll as well. */
export function notifyLockWaiters(database: Database, names: readonly string[]): void {
  const wakeups = wakeupsOf(database)
  if (!wakeups) return
  const notified = database
    .send(awaitedLocks, [textArray(names)], { deadlineMs: ANSWER_MS, duringClose: true })
    .then((rows) => {
      for (const { name } of rows) wakeups.notify(lockTopic(`${name}`))
    })
  database.finish(notified.catch(() => {}))
}
