import type { TestSession } from '../session/test-session.js'

/**
 * Describes which actor waits for what, when no unit can take a step and some actor has not ended. The actors then wait for
 * each other in a way that the server does not see, such as through a pool. Undefined if all actors have ended.
 */
export function explainStuck({ actors, actorSet, quiescence }: TestSession): string | undefined {
  const waiting = actors.flatMap((actor) => {
    const pools = [...actor.poolWaits].map(({ what }) => `${actor.name} waits for ${what}`)
    const locks = [...quiescence.waits]
      .filter(([session]) => actor.sessions.has(session))
      .map(([session, { by }]) => {
        const holders = by.map((pid) => actorSet.nameOf(pid)).join(' and ')
        return `${actor.labelOf(session)} waits for ${holders} in: ${session.step?.text}`
      })
    return [...pools, ...locks]
  })
  if (waiting.length === 0) return undefined
  const ended = actorSet.withOpenTransaction
    .filter((name) => actors.some((actor) => actor.name === name && actor.outcome !== undefined))
    .map((name) => `${name} has ended and left its transaction open.`)
  return [...waiting, ...ended].join('\n')
}
