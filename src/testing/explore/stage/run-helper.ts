import { ExplorationError } from '../../../errors.js'
import { type Actor, markEnded, runAs } from '../../gate/actor.js'
import type { ActorConnections } from '../../gate/actor-connections.js'
import type { ActorPool } from '../../gate/actor-pool.js'
import { callSite } from '../../gate/call-site.js'
import type { GatedSession } from '../../gate/gated-session.js'

/** What the user gives beside the actors. */
export type Helper = 'setup' | 'reset' | 'advance' | 'progress' | 'invariant'

/** Runs one of them. All that it began must be over when it returns, or it would see, or change, the next schedule's data. */
export async function runHelper(
  { actor, pool }: ActorConnections,
  what: Helper,
  fn: (db: ActorPool) => unknown,
): Promise<unknown> {
  checkNotLate(actor, what)
  try {
    const value = await runAs(actor, async () => {
      const value = await fn(pool)
      markEnded()
      const busy = [...actor.sessions].filter(isBusy)
      // Whoever waits for an answer there must not wake up to throw something that nobody catches.
      for (const session of busy) session.abandon()
      if (actor.connecting + busy.length > 0)
        throw wentOn(what, actor.asked.statement ?? actor.asked.connection)
      return value
    })
    checkClosed(actor, what)
    return value
  } finally {
    actor.run++ // what still comes from it is not run
  }
}

/** Something came from it after it had returned. */
export function checkNotLate({ late }: Actor, what: Helper): void {
  if (late) throw wentOn(what, late)
}

const isBusy = ({ state }: GatedSession): boolean =>
  state === 'planning' || state === 'gated' || state === 'running'

const wentOn = (what: Helper, where: Error | undefined): ExplorationError =>
  new ExplorationError(
    `\`${what}\` went on after it had returned, at ${callSite(where) ?? 'a place unknown'}: an \`await\` or a \`return\` is missing there or above.`,
    what,
  )

/** A transaction that is left open would show the same data for ever, or keep its locks. */
function checkClosed({ sessions }: Actor, what: Helper): void {
  if (![...sessions].some(({ state, status }) => state === 'idle' && status !== 'I')) return
  throw new ExplorationError(`\`${what}\` has left a transaction open. End it with COMMIT or ROLLBACK.`, what)
}
