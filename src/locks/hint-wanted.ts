import type { Database } from '../postgres/database.js'
import { textArray } from '../postgres/text-values.js'
import { wakeupsOf } from '../postgres/wakeups.js'
import { topicOf } from './lock-origin.js'
import { wantedLocks } from './lock-statements.js'

const ANSWER_MS = 5_000

/** Wakes who waits for these locks, if somebody does. Returns at once and never fails: whoever waits looks again in any case. */
export function hintWanted(database: Database, names: readonly string[]): void {
  const wakeups = wakeupsOf(database)
  if (!wakeups) return
  const looked = database.sendPart(wantedLocks, [textArray(names)], ANSWER_MS).then((rows) => {
    for (const { name } of rows) wakeups.hint(topicOf(`${name}`))
  })
  database.finish(looked.catch(() => {}))
}
