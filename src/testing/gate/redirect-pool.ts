import type { Pool } from 'pg'
import { type Actor, currentActor } from './actor.js'
import type { ActorPool } from './actor-pool.js'

/**
 * While this lasts, whatever an actor's code asks of `pool` goes to the actor's own gated pool instead; anybody else's
 * goes where it always went. So code that has its pool in a module needs no change to be explored.
 */
export function redirectPool(pool: Pool, poolOf: (actor: Actor) => ActorPool | undefined): () => void {
  const original = { connect: pool.connect, query: pool.query }
  const target = (): Pool | undefined => {
    const actor = currentActor()
    return actor && poolOf(actor)
  }
  const redirect =
    (name: 'connect' | 'query') =>
    (...parameters: unknown[]) => {
      const gated = target()
      const method = (gated ? gated[name] : original[name]) as (...parameters: unknown[]) => unknown
      return method.apply(gated ?? pool, parameters)
    }
  Object.assign(pool, { connect: redirect('connect'), query: redirect('query') })
  return () => void Object.assign(pool, original)
}
