import { BusyError, InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { nameGiven } from '../postgres/name-given.js'
import { sendSurely } from '../postgres/send-surely.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { assertAllNamed, type ReadTarget } from './job-ref.js'
import { cancelJob } from './job-statements.js'

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

/** A notification on this topic makes every worker with running jobs check them at once. */
export const CANCEL_TOPIC = 'jobs-cancel'

const WAIT_MS = 5_000
const MAX_REASON = 1_000

export async function cancelOn(
  parts: { readonly database: Database; readonly wakeups: Wakeups },
  target: ReadTarget,
  options: CancelOptions,
): Promise<Canceled> {
  checkOptions(options, ['reason'])
  // Without a reason, store an empty one. Otherwise the error of the previous attempt would appear as the reason.
  const { reason = '' } = options
  if (typeof reason !== 'string')
    throw new InvalidInputError('reason', `must be a text, not ${nameGiven(reason)}`)
  if (reason.length > MAX_REASON || reason.includes('\0'))
    throw new InvalidInputError('reason', `must be at most ${MAX_REASON} characters, without NUL`)
  const { database, wakeups } = parts
  const { id } = target
  await assertAllNamed(database, [target])
  // A string that was cut within a surrogate pair is still accepted as a reason.
  const error = JSON.stringify({
    name: 'JobCanceledError',
    message: reason.replace(/\p{Surrogate}/gu, '\ufffd'),
  })
  const values = [id, error, String(database.boundWait(WAIT_MS))]
  const [row] = await sendSurely(parts, cancelJob, () => values)
  const { state } = JSON.parse(`${row?.told}`)
  if (state === 'locked') throw new BusyError(`job ${id}`, WAIT_MS, 100)
  if (state === 'canceling') wakeups.hint(CANCEL_TOPIC)
  return { state }
}
