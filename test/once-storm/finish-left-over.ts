import pg from 'pg'
import type { Dibs } from '../../src/dibs.js'
import { FenceLostError, InProgressError } from '../../src/errors.js'
// @ts-expect-error: plain JavaScript, since processes of their own run it too
import * as work from '../children/once-work.mjs'
import { until } from '../until.js'

/** Maintains until no claim is pending. How many operations that took, and what each of the keys is answered then. */
export async function finishLeftOver(
  dibs: Dibs,
  { url, world, seed }: { readonly url: string; readonly world: string; readonly seed: number },
  keys: ReadonlyMap<number, string>,
): Promise<{ readonly maintained: number; readonly answers: ReadonlyMap<number, string> }> {
  const outside = new pg.Pool({ connectionString: url, max: 2 })
  try {
    const context = { tell() {}, world: outside, worldSchema: world }
    const leased = { leaseMs: work.LEASE_MS, maxAttempts: 1_000 }
    const operation = dibs.operation(
      work.OPERATION,
      leased,
      async ({ number }: { number: number }, claim) =>
        (await work.workLeased(claim, work.planOf(number, seed), context)) as unknown,
    )
    let maintained = 0
    await until(
      async () => {
        maintained += (await dibs.maintain({ once: true })).operationsFinished
        return (await dibs.claims.list({ status: 'pending' })).items.length === 0
      },
      'maintenance to finish what was left',
      120_000,
    )
    const answers = new Map<number, string>()
    for (const [number, key] of keys) {
      // Leases are short: this process may stand still for as long, and then calls again, as the others do.
      const answer = async (): Promise<string | undefined> => {
        try {
          return JSON.stringify(await operation.run({ number }, { key, waitMs: 5_000 }))
        } catch (error) {
          if (error instanceof FenceLostError || error instanceof InProgressError) return undefined
          throw error
        }
      }
      answers.set(number, await until(answer, `an answer to ${key}`, 60_000))
    }
    return { maintained, answers }
  } finally {
    await outside.end()
  }
}
