import type pg from 'pg'
import { InvalidInputError } from '../errors.js'
import { checkOptions } from './check-options.js'
import { checkEmbeddedOptions, type EmbeddedOptions } from './embedded/embedded-options.js'
import { checkSchemaName } from './identifier.js'
import { checkLogger } from './log-events.js'
import type { Logger } from './logger.js'
import { hasMethods, nameGiven, showGiven } from './name-given.js'
import { parseUrl } from './url.js'

export interface OpenOptions {
  /**
   * Where PostgreSQL is: `postgres://user:password@host:5432/database`. Default: the variable DATABASE_URL. Without
   * either a PostgreSQL is started in `./.dibs`, unless NODE_ENV is `production`.
   */
  readonly url?: string | undefined
  /** A pool of your own in place of `url`, of pg 8.11 or newer (native clients: 8.21). `close()` leaves it open. */
  readonly pool?: pg.Pool | undefined
  /** A PostgreSQL of our own in place of `url`, shared by all processes that name the same folder. */
  readonly embedded?: EmbeddedOptions | undefined
  /** The schema that holds our tables and functions, made when it is missing. Default `dibs`. */
  readonly schema?: string | undefined
  /** Where events go: a pino logger or one like it. Default: failures go to stderr, one line each. `false`: nothing is written. */
  readonly logger?: Logger | false | undefined
  /**
   * What to do about the schema's version: `auto` (default) brings it up to date, `check` refuses what does not
   * fit, `off` asks nothing.
   */
  readonly migrate?: 'auto' | 'check' | 'off' | undefined
  /** Keep one connection to hear of news at once. Without it everything works by polling. Default true. */
  readonly listen?: boolean | undefined
  /** Let the server keep the plans of our statements by name. Turn off behind PgBouncer in transaction mode. Default true. */
  readonly prepared?: boolean | undefined
  /**
   * Do maintenance in the background, such as removing expired rows. One process for each schema does so every
   * 30 seconds; the first round comes 15 to 30 seconds after `open`, and does not keep the process from ending. Default true.
   */
  readonly maintain?: boolean | undefined
}

const optionNames = [
  'url',
  'pool',
  'embedded',
  'schema',
  'logger',
  'migrate',
  'listen',
  'prepared',
  'maintain',
]

/** Callers without types may give anything. Only `undefined` means that an option was not given. */
export function checkOpenOptions(options: OpenOptions): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new InvalidInputError('options', `must be an object such as { url }, not ${nameGiven(options)}`)
  }
  checkOptions(options, optionNames)
  const { migrate: mode = 'auto', url, pool, embedded, schema, logger } = options
  if (!['auto', 'check', 'off'].includes(mode)) {
    throw new InvalidInputError('migrate', `must be 'auto', 'check' or 'off', not ${showGiven(mode)}`)
  }
  for (const name of ['listen', 'prepared', 'maintain'] as const) {
    const value = options[name]
    if (value !== undefined && typeof value !== 'boolean') {
      throw new InvalidInputError(name, `must be true or false, not ${nameGiven(value)}`)
    }
  }
  if (schema !== undefined) checkSchemaName(schema)
  if (logger !== undefined && logger !== false) checkLogger(logger)
  const ways = Object.entries({ url, pool, embedded }).filter(([, value]) => value !== undefined)
  if (ways.length > 1) {
    const [first, second] = ways.map(([name]) => name)
    throw new InvalidInputError(
      `${second}`,
      `and \`${first}\` are two ways to say where to connect; give one`,
    )
  }
  if (pool !== undefined) checkPool(pool)
  if (url !== undefined) parseUrl(url)
  if (embedded !== undefined) checkEmbeddedOptions(embedded)
}

/** A `pg.Client` has these methods, too, but no `options`. */
function checkPool(pool: unknown): void {
  if (
    hasMethods(pool, 'connect', 'query', 'on', 'off', 'end') &&
    isObject(Reflect.get(Object(pool), 'options'))
  )
    return
  throw new InvalidInputError('pool', `must be a Pool of pg, not ${nameGiven(pool)}`)
}

const isObject = (value: unknown): boolean => typeof value === 'object' && value !== null
