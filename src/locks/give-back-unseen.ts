import { fullJitterMs } from '../postgres/backoff.js'
import { sleep } from '../postgres/sleep.js'
import type { LockParts, ToldLock } from './held-lock.js'
import { topicOf } from './lock-origin.js'
import { giveLockBack, inspectLock } from './lock-statements.js'

/** It never waits on the server: a longer silence is that of the network. */
const ANSWER_MS = 5_000

/** One call for a lock, under the name that it has for the server. */
export interface Asker {
  readonly name: string
  readonly holder: string
}

/** Nobody wants it any more. If that cannot be said, its lease runs out. */
export async function giveBackUnwanted(
  { database, wakeups }: LockParts,
  { name, holder }: Asker,
  { permit, fence }: Pick<ToldLock, 'permit' | 'fence'>,
): Promise<boolean> {
  const values = [name, String(permit), holder, String(fence), '1000']
  const [row] = await database.sendPart(giveLockBack, values, ANSWER_MS).catch(() => [])
  if (row && JSON.parse(`${row.told}`).isWanted) wakeups.hint(topicOf(name))
  return row !== undefined
}

/**
 * What may have been given to a call, whose caller hears that it failed, is given back as soon as the server answers; others would wait for all its
 * lease.
 */
export async function giveBackUnseen(parts: LockParts, asker: Asker, leaseMs: number): Promise<void> {
  const { database } = parts
  const until = performance.now() + leaseMs
  const look = async (): Promise<boolean> => {
    const rows = await database.sendPart(inspectLock, [asker.name], ANSWER_MS).catch(() => undefined)
    const mine = rows?.find(({ holder }) => holder === asker.holder)
    if (!mine) return rows !== undefined
    return await giveBackUnwanted(parts, asker, { permit: Number(mine.permit), fence: Number(mine.fence) })
  }
  // `close` waits for the first, or for another that has begun, and lets no more begin.
  for (let tries = 1; !(await database.work(look, tries === 1)) && performance.now() < until; tries++)
    await sleep(fullJitterMs(tries, 100, 5_000), undefined, { ref: false })
}
