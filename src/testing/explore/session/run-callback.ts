import { ExplorationError } from '../../../errors.js'
import { type Actor, markReturned, runAs } from '../../gate/actor.js'
import type { ActorConnections } from '../../gate/actor-connections.js'
import type { ActorPool } from '../../gate/actor-pool.js'
import { callSite } from '../../gate/call-site.js'
import type { GatedSession } from '../../gate/gated-session.js'

/** The functions of the user beside the actors. */
type CallbackName = 'setup' | 'reset' | 'advance' | 'progress' | 'invariant'

/** Runs a function of the user. Throws if the function did not wait for all of its requests, which would reach the next schedule. */
export async function runCallback(
  { actor, pool }: ActorConnections,
  what: CallbackName,
  fn: (db: ActorPool) => unknown,
): Promise<unknown> {
  checkNotLate(actor, what)
  try {
    const value = await runAs(actor, async () => {
      const value = await fn(pool)
      markReturned()
      const busy = [...actor.sessions].filter(isBusy)
      // Code that still waits for an answer must not resume: it might throw an error that nothing catches.
      for (const session of busy) session.abandon()
      if (actor.connecting + busy.length > 0)
        throw wentOnError(what, actor.lastCalls.statement ?? actor.lastCalls.connection)
      return value
    })
    checkClosed(actor, what)
    return value
  } finally {
    actor.run++ // later requests of this run are not sent
  }
}

/** Throws if the function sent a request after it had returned. */
export function checkNotLate({ lateCall }: Actor, what: CallbackName): void {
  if (lateCall) throw wentOnError(what, lateCall)
}

const isBusy = ({ state }: GatedSession): boolean =>
  state === 'planning' || state === 'gated' || state === 'running'

const wentOnError = (what: CallbackName, where: Error | undefined): ExplorationError =>
  new ExplorationError(
    `\`${what}\` went on after it had returned, at ${callSite(where) ?? 'a place unknown'}: an \`await\` or a \`return\` is missing there or above.`,
    what,
  )

/** Throws if the function has left a transaction open, which would keep its snapshot and its locks. */
function checkClosed({ sessions }: Actor, what: CallbackName): void {
  if (![...sessions].some(({ state, status }) => state === 'idle' && status !== 'I')) return
  throw new ExplorationError(`\`${what}\` has left a transaction open. End it with COMMIT or ROLLBACK.`, what)
}
