import type { Pool } from 'pg'
import { markUnderTest } from '../../postgres/pools-under-test.js'
import { type Actor, currentActor, isOfEarlierRun } from './actor.js'
import type { ActorPool } from './actor-pool.js'

const NAMES = ['connect', 'query', 'end'] as const

/**
 * While this lasts, whatever an actor's code asks of `pool` goes to the actor's own gated pool instead; anybody else's
 * goes where it always went. So code that has its pool in a module needs no change to be explored.
 */
export function redirectPool(
  pool: Pool,
  poolOf: (actor: Actor) => ActorPool | undefined,
  onStranger: (parameters: readonly unknown[]) => void,
): () => void {
  const unmark = markUnderTest(pool)
  const original = { connect: pool.connect, query: pool.query, end: pool.end }
  const own = NAMES.map((name) => Object.getOwnPropertyDescriptor(pool, name))
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
      // A loop that an actor has started in the background: it may go on when this is over.
      if (isOfEarlierRun())
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
    for (const [i, name] of NAMES.entries()) {
      const before = own[i]
      if (before) Object.defineProperty(pool, name, before)
      else Reflect.deleteProperty(pool, name)
    }
    unmark()
    stop()
  }
}
