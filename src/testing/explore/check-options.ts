import { InvalidInputError } from '../../errors.js'
import { currentActor } from '../gate/actor.js'
import type { ExploreBound, ExploreOptions } from './options.js'
import { actorOf } from './schedule/trace.js'

const NAME = /^[^\s/]{1,40}$/
const MOST_ACTORS = 26
const ISOLATIONS = ['read committed', 'repeatable read', 'serializable']

const KNOWN: Record<keyof ExploreOptions, true> = {
  pool: true,
  url: true,
  setup: true,
  actors: true,
  invariant: true,
  mayFail: true,
  bound: true,
  everyOrder: true,
  isolation: true,
  seed: true,
  clock: true,
  replay: true,
  schedule: true,
  throws: true,
  page: true,
  reset: true,
  patienceMs: true,
  slowDeadlocks: true,
}

const isFunction = (value: unknown): boolean => typeof value === 'function'
const isBoolean = (value: unknown): boolean => typeof value === 'boolean'

/** What each must be, where that is not told in better words elsewhere. */
const KINDS: Partial<Record<keyof ExploreOptions, readonly [(value: unknown) => boolean, string]>> = {
  setup: [isFunction, 'a function'],
  invariant: [isFunction, 'a function'],
  mayFail: [isFunction, 'a function'],
  reset: [isFunction, 'a function'],
  clock: [(value) => value instanceof Date && !Number.isNaN(value.getTime()), 'a valid Date'],
  seed: [Number.isFinite, 'a number'],
  schedule: [Array.isArray, 'a list of names'],
  replay: [(value) => typeof value === 'string', 'a string'],
  everyOrder: [isBoolean, 'true or false'],
  throws: [isBoolean, 'true or false'],
  slowDeadlocks: [isBoolean, 'true or false'],
}

const describe = (value: unknown): string =>
  typeof value === 'string' || typeof value === 'number' || value === null
    ? JSON.stringify(value)
    : typeof value

/** The least that each may be. */
const BOUNDS: Record<keyof ExploreBound, number> = { preemptions: 0, schedules: 1, random: 0, steps: 1 }

/** Refuses what is not acceptable: an option that is misspelled would be one that is not obeyed. */
export function checkOptions(options: ExploreOptions): ExploreOptions {
  if (currentActor())
    throw new InvalidInputError(
      'actors',
      'must not explore themselves: this call comes from within an exploration',
    )
  const { pool, url, replay = process.env.DIBS_REPLAY, isolation, bound = {}, patienceMs = 1, page } = options
  for (const name of Object.keys(options))
    if (!(name in KNOWN))
      throw new InvalidInputError(name, `is no option of explore: ${Object.keys(KNOWN).join(', ')} are`)
  if (Boolean(pool) === Boolean(url))
    throw new InvalidInputError('pool', 'or `url` must be given, and not both')
  if (page !== undefined && (typeof page !== 'string' || page === ''))
    throw new InvalidInputError('page', `must be the path of a file, not ${JSON.stringify(page)}`)
  for (const [name, [isRight, what]] of Object.entries(KINDS)) {
    const value = options[name as keyof ExploreOptions]
    if (value !== undefined && !isRight(value))
      throw new InvalidInputError(name, `must be ${what}, not ${describe(value)}`)
  }
  checkActors(options)
  if (isolation !== undefined && !ISOLATIONS.includes(isolation))
    throw new InvalidInputError(
      'isolation',
      `must be one of ${ISOLATIONS.join(', ')}, not ${JSON.stringify(isolation)}`,
    )
  for (const [name, value] of Object.entries(bound)) checkBound(name, value)
  if (!(patienceMs > 0)) throw new InvalidInputError('patienceMs', `must be more than 0, not ${patienceMs}`)
  return replay ? { ...options, replay } : options
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

function checkBound(name: string, value: number | undefined): void {
  const least = BOUNDS[name as keyof ExploreBound]
  if (least === undefined)
    throw new InvalidInputError(`bound.${name}`, `is no bound: ${Object.keys(BOUNDS).join(', ')} are`)
  if (value !== undefined && !(value >= least))
    throw new InvalidInputError(`bound.${name}`, `must be ${least} or more, not ${value}`)
}
