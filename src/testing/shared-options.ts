import type { Pool } from 'pg'
import { InvalidInputError } from '../errors.js'
import { MAX_TIMER_MS } from '../options/max-timer-ms.js'
import { hasMethods, showGiven } from '../options/name-given.js'
import { duration, wholeNumber } from '../options/number-options.js'
import { checked } from '../options/option.js'
import { boolean, date, func, oneOf, string } from '../options/value-options.js'
import type { Isolation } from '../postgres/transaction-types.js'
import type { ActorPool } from './gate/actor-pool.js'

const checkPool = (field: string, value: unknown): void => {
  if (!hasMethods(value, 'connect'))
    throw new InvalidInputError(field, `must be a Pool of pg, not ${showGiven(value)}`)
}

/** The options that `explore` and `crashLoop` share. */
export const sharedOptions = {
  name: string({ min: 1 }),
  pool: checked<Pool>(checkPool),
  url: string(),
  setup: func<(db: ActorPool) => unknown>(),
  isolation: oneOf<Isolation>(['read committed', 'repeatable read', 'serializable']),
  seed: wholeNumber({ min: Number.MIN_SAFE_INTEGER, default: 1 }),
  clockStartsAt: date(),
  replay: string(),
  throws: boolean({ default: true }),
  page: string({ min: 1 }),
  reset: func<(db: ActorPool) => unknown>(),
  patienceMs: duration({ max: MAX_TIMER_MS }),
}

/** `pool` and `url` say the same thing, so exactly one of them must be given. */
export function checkTarget({ pool, url }: { readonly pool?: unknown; readonly url?: unknown }): void {
  if (Boolean(pool) === Boolean(url))
    throw new InvalidInputError('pool', 'or `url` must be given, and not both')
}
