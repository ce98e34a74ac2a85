import { CommitOutcomeUnknownError, DibsError } from '../errors.js'
import { fullJitterMs } from './backoff.js'
import type { Database } from './database.js'
import { sleep } from './sleep.js'
import type { Statement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

/** How often a statement is sent whose answer does not come. Each may be sent again: it names its fence, or its holder. */
const MAX_TRIES = 5

/** Sends a statement that may be repeated until its answer comes, within bounds. */
export const sendSurely = (
  { database }: { readonly database: Database },
  statement: Statement,
  values: () => readonly TextValue[],
): Promise<TextRow[]> => surely(() => database.sendPart(statement, values()))

/** The same, however it is sent. */
export async function surely<T>(send: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await send()
    } catch (error) {
      const mayHelp =
        error instanceof CommitOutcomeUnknownError || (error instanceof DibsError && error.retryable)
      if (!mayHelp || tries === MAX_TRIES) throw error
      await sleep(fullJitterMs(tries, 20, 500))
    }
  }
}
