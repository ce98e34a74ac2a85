import { InvalidInputError } from '../../errors.js'
import {
  ANYTHING,
  BOOLEAN,
  COMMON,
  checkBounds,
  checkGiven,
  FUNCTION,
  type Kind,
  LIST,
} from '../check-given.js'
import { currentActor } from '../gate/actor.js'
import type { ExploreOptions } from './options.js'
import { actorOf } from './schedule/trace.js'

const NAME = /^[^\s/]{1,40}$/
const MOST_ACTORS = 26

const KINDS: Readonly<Record<keyof ExploreOptions, Kind>> = {
  ...COMMON,
  actors: ANYTHING, // told in better words below
  mayFail: FUNCTION,
  everyOrder: BOOLEAN,
  schedule: LIST,
  slowDeadlocks: BOOLEAN,
}

export function checkOptions(options: ExploreOptions): void {
  if (currentActor())
    throw new InvalidInputError(
      'actors',
      'must not explore themselves: this call comes from within an exploration',
    )
  checkGiven(options, { of: 'explore', kinds: KINDS })
  checkActors(options)
  checkBounds(options.bound, { preemptions: 0, schedules: 1, random: 0, steps: 1 })
}

function checkActors({ actors, schedule = [] }: ExploreOptions): void {
  const names = Object.keys(actors ?? {})
  if (names.length === 0 || names.length > MOST_ACTORS)
    throw new InvalidInputError('actors', `must be 1 to ${MOST_ACTORS}, not ${names.length}`)
  for (const name of names) {
    if (!NAME.test(name))
      throw new InvalidInputError(
        'actors',
        `must have names without blanks and slashes, not ${JSON.stringify(name)}`,
      )
    if (typeof actors[name] !== 'function')
      throw new InvalidInputError(`actors.${name}`, `must be a function, not ${typeof actors[name]}`)
  }
  const stranger = schedule.find((unit) => !names.includes(actorOf(unit)))
  if (stranger !== undefined)
    throw new InvalidInputError(
      'schedule',
      `names ${stranger}, who is not among the actors (${names.join(', ')})`,
    )
}
