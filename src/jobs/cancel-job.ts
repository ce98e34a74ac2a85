import { BusyError, InvalidInputError } from '../errors.js'
import { checked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { string } from '../options/value-options.js'
import type { Database } from '../postgres/database.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { assertAllNamed, type ResolvedTarget } from './job-ref.js'
import { cancelJob } from './job-statements.js'
import { CANCEL_TOPIC } from './job-topics.js'

export interface CancelOptions {
  /** The reason, at most 1,000 characters. Dibs stores it with the job, and `jobs.result` reports it in its `JobCanceledError`. */
  readonly reason?: string | undefined
}

export interface Canceled {
  /**
   * `canceled`: the job has ended. `canceling`: the worker that runs the job is told to stop. `dead`: the job had failed for good before. `ended`: the job
   * had ended before, or is not known.
   */
  readonly state: 'canceled' | 'canceling' | 'dead' | 'ended'
}

const WAIT_MS = 5_000
const reasonLength = string({ max: 1_000 })

function checkReason(field: string, reason: unknown): void {
  reasonLength.check(field, reason)
  if (`${reason}`.includes('\0')) throw new InvalidInputError(field, 'must not hold a NUL character')
}

export const cancelOptions = optionTable<CancelOptions>()('jobs.cancel', {
  reason: checked(checkReason, { bounds: reasonLength.bounds }),
})

export async function cancelOn(
  parts: { readonly database: Database; readonly wakeups: Wakeups },
  target: ResolvedTarget,
  options: CancelOptions,
): Promise<Canceled> {
  // Without a reason, store an empty one. Otherwise the error of the previous attempt would appear as the reason.
  const { reason = '' } = cancelOptions.read(options)
  const { database, wakeups } = parts
  const { id } = target
  await assertAllNamed(database, [target])
  // A string that was cut within a surrogate pair is still accepted as a reason.
  const error = JSON.stringify({
    name: 'JobCanceledError',
    message: reason.replace(/\p{Surrogate}/gu, '\ufffd'),
  })
  const values = [id, error, String(database.boundWait(WAIT_MS))]
  const [row] = await parts.database.send(cancelJob, values, { duringClose: true, retry: true })
  const { state } = JSON.parse(`${row?.result}`)
  if (state === 'locked') throw new BusyError(`job ${id}`, WAIT_MS, 100)
  if (state === 'canceling') wakeups.notify(CANCEL_TOPIC)
  return { state }
}
