import type { Pool } from 'pg'
import { markUnderTest } from '../../postgres/pools-under-test.js'
import { type Actor, currentActor, runsInFinishedRun } from './actor.js'
import type { ActorPool } from './actor-pool.js'

const METHODS = ['connect', 'query', 'end'] as const

/**
 * Redirects the calls that an actor's code makes on `pool` to the actor's own gated pool. Calls of other code still reach
 * `pool`. So code with a pool in a module can be explored without a change. Returns a function that ends the redirection.
 *
 * @param onStranger called for a call that comes from no actor
 */
export function redirectPool(
  pool: Pool,
  poolOf: (actor: Actor) => ActorPool | undefined,
  onStranger: (parameters: readonly unknown[]) => void,
): () => void {
  const unmark = markUnderTest(pool)
  const original = { connect: pool.connect, query: pool.query, end: pool.end }
  const ownDescriptors = METHODS.map((name) => Object.getOwnPropertyDescriptor(pool, name))
  let stop = (): void => {}
  const stopped = new Promise<void>((resolve) => {
    stop = resolve
  })
  const target = (): Pool | undefined => {
    const actor = currentActor()
    return actor && poolOf(actor)
  }
  const redirect =
    (name: 'connect' | 'query' | 'end') =>
    (...parameters: unknown[]) => {
      const gated = target()
      // A background loop that an actor has started. Its call runs when the redirection ends.
      if (runsInFinishedRun())
        return stopped.then(() =>
          (original[name] as (...parameters: unknown[]) => unknown).apply(pool, parameters),
        )
      if (!gated) onStranger(parameters)
      const method = (gated ? gated[name] : original[name]) as (...parameters: unknown[]) => unknown
      return method.apply(gated ?? pool, parameters)
    }
  Object.assign(pool, {
    connect: redirect('connect'),
    query: redirect('query'),
    end: redirect('end'),
  })
  return () => {
    for (const [i, name] of METHODS.entries()) {
      const before = ownDescriptors[i]
      if (before) Object.defineProperty(pool, name, before)
      else Reflect.deleteProperty(pool, name)
    }
    unmark()
    stop()
  }
}
