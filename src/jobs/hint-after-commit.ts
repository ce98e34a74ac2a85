import type { Database } from '../postgres/database.js'
import type { Tx } from '../postgres/executor.js'
import { statement } from '../postgres/statement.js'
import { toPayload, type Wakeups } from '../postgres/wakeups.js'
import { hintJobs, type NewJob, topicsOf } from './add-jobs.js'

const notify = statement(`select pg_catalog.pg_notify($1::text, $2::text)::text as sent`)

/** Tells workers of jobs that were added in a transaction when that commits, if it says so; else from inside, if that is wanted; else they find out by polling. */
export async function hintAfterCommit(
  database: Database,
  wakeups: Wakeups,
  jobs: readonly NewJob[],
  tx: Tx,
  wake: 'in-transaction' | undefined,
): Promise<void> {
  const { afterCommit } = tx as { afterCommit?: unknown }
  if (typeof afterCommit === 'function') afterCommit.call(tx, () => hintJobs(wakeups, jobs))
  else if (wake) await database.send(notify, [wakeups.channel, toPayload(topicsOf(jobs))], tx)
}
