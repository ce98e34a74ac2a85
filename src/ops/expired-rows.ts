import { forgetExpiredClaims } from '../claims/claim-statements.js'
import { forgetExpiredKeys } from '../claims/kv/kv-statements.js'
import { forgetQuotas } from '../claims/quota/quota-statements.js'
import { forgetExpiredRates } from '../claims/rate-limit/rate-statements.js'
import { forgetJobDays } from '../jobs/job-maintenance.js'
import { expireJobs, forgetWorkers } from '../jobs/job-statements.js'
import { forgetLocks } from '../locks/lock-statements.js'
import type { Database } from '../postgres/database.js'
import { sleep } from '../postgres/sleep.js'
import type { Statement } from '../postgres/statement.js'
import { forgetFlights } from '../single-flight/flight-statements.js'
import { deleteOrphanedMarks } from '../tables/aggregate/refresh-marked.js'

/** Rows per statement. Small enough to block other sessions only briefly. */
const BATCH = 1_000
/** Batches per round. Rows that remain count as expired, and the next round removes them. */
const MAX_BATCHES = 100
/** A batch takes milliseconds, so a longer silence means a network problem. */
export const ANSWER_MS = 10_000
/** How often one round retries expired rows that other sessions have locked, and after which pause. */
const MAX_BUSY = 10
const BUSY_MS = 50

/** The statements that remove a batch of expired rows, by the names of their counts in the report. */
const STATEMENTS = {
  claimsForgotten: forgetExpiredClaims,
  keysForgotten: forgetExpiredKeys,
  quotasForgotten: forgetQuotas,
  ratesForgotten: forgetExpiredRates,
  locksForgotten: forgetLocks,
  flightsForgotten: forgetFlights,
  jobsExpired: expireJobs,
  workersForgotten: forgetWorkers,
  marksForgotten: deleteOrphanedMarks,
} as const satisfies Partial<Record<string, Statement>>

/** A kind of expired rows, by the name of its count in the report. Days of the job history are dropped, not removed row by row. */
export type ExpiredKind = keyof typeof STATEMENTS | 'jobDaysForgotten'

export const expiredKinds = [...Object.keys(STATEMENTS), 'jobDaysForgotten'] as ExpiredKind[]

export const NOTHING_REMOVED = Object.fromEntries(expiredKinds.map((name) => [name, 0])) as Record<
  ExpiredKind,
  number
>

/** Removes expired rows of one kind, batch by batch. Returns their number. */
export async function removeExpired(database: Database, name: ExpiredKind): Promise<number> {
  if (name === 'jobDaysForgotten') return await forgetJobDays(database)
  const statement = STATEMENTS[name]
  let total = 0
  let busy = 0
  for (let batch = 0; batch < MAX_BATCHES; batch++) {
    const [row] = await database.send(statement, [String(BATCH)], { deadlineMs: ANSWER_MS })
    const count = Number(row?.count)
    total += count
    // guard: ops.maintenance-busy-later
    if (row?.busy === 'true') {
      if (++busy >= MAX_BUSY) break
      await sleep(BUSY_MS)
    } else if (count < BATCH) break
  }
  return total
}
