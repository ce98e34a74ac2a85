import { createHash } from 'node:crypto'
import { InvalidInputError } from '../../../errors.js'
import { actorOf, stepSignature, type TraceStep } from '../schedule/trace.js'

/** A schedule as a replay string holds it: the unit of each step, and two digits that stand for what the step did. */
export interface Replay {
  readonly units: readonly string[]
  readonly checks: readonly string[]
}

const FORM = /^v1:((?:[a-z]\d*)*):((?:[0-9a-f]{2})*)(?:@[0-9a-f]{6})?$/

export const checkOf = (step: TraceStep): string =>
  createHash('sha256').update(stepSignature(step)).digest('hex').slice(0, 2)

/** @param identity identifies the exploration, for `DIBS_REPLAY` */
export function encodeReplay(
  steps: readonly TraceStep[],
  actors: readonly string[],
  identity: string,
): string {
  const letters = steps.map(({ unit }) => {
    const letter = String.fromCharCode(97 + actors.indexOf(actorOf(unit)))
    return letter + unit.slice(actorOf(unit).length + 1)
  })
  return `v1:${letters.join('')}:${steps.map(checkOf).join('')}@${identity}`
}

export function decodeReplay(text: string, actors: readonly string[]): Replay {
  const found = FORM.exec(text)
  const units = [...(found?.[1] ?? '').matchAll(/([a-z])(\d*)/g)].map(([, letter, connection]) => {
    const actor = actors[(letter as string).charCodeAt(0) - 97]
    return actor === undefined ? undefined : connection ? `${actor}/${connection}` : actor
  })
  const checks = found?.[2]?.match(/../g) ?? []
  if (!found || units.length !== checks.length || units.includes(undefined))
    throw new InvalidInputError(
      'replay',
      `must be the string of a printout of these actors (${actors.join(', ')}), like v1:aabba:3fc2097e11@8c1f20, not ${JSON.stringify(text)}`,
    )
  return { units: units as string[], checks }
}
