import { BusyError, InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { nameGiven } from '../postgres/name-given.js'
import { sendSurely } from '../postgres/send-surely.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { assertAllNamed, type ReadTarget } from './job-ref.js'
import { cancelJob } from './job-statements.js'

export interface CancelOptions {
  /** Kept with the job, and told to whoever asks for its result. */
  readonly reason?: string | undefined
}

export interface Canceled {
  /** `canceled`, it is over; `canceling`, whoever runs it is told; `dead`, it has failed for good before; `ended`, it was over, or nobody knows of it. */
  readonly state: 'canceled' | 'canceling' | 'dead' | 'ended'
}

/** Workers that run something look at once when this is heard. */
export const CANCEL_TOPIC = 'jobs-cancel'

const WAIT_MS = 5_000
const MAX_REASON = 1_000

export async function cancelOn(
  parts: { readonly database: Database; readonly wakeups: Wakeups },
  target: ReadTarget,
  options: CancelOptions,
): Promise<Canceled> {
  checkOptions(options, ['reason'])
  // None is an empty one: where there is no error at all, that of the attempt before would be told as the reason.
  const { reason = '' } = options
  if (typeof reason !== 'string')
    throw new InvalidInputError('reason', `must be a text, not ${nameGiven(reason)}`)
  if (reason.length > MAX_REASON || reason.includes('\0'))
    throw new InvalidInputError('reason', `must be at most ${MAX_REASON} characters, without NUL`)
  const { database, wakeups } = parts
  const { id } = target
  await assertAllNamed(database, [target])
  // A text that was cut within a character is a reason all the same.
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
