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
   * The address of PostgreSQL: `postgres://user:password@host:5432/database`. Default: the environment variable DATABASE_URL. Without either, Dibs starts an
   * embedded PostgreSQL in `./.dibs`, unless NODE_ENV is `production`.
   */
  readonly url?: string | undefined
  /** Your own pool in place of `url`, of pg 8.11 or newer (native clients: 8.21). `close()` leaves it open. */
  readonly pool?: pg.Pool | undefined
  /** An embedded PostgreSQL in place of `url`. All processes that name the same folder share it. */
  readonly embedded?: EmbeddedOptions | undefined
  /** The schema that holds the tables and functions of Dibs. Dibs creates it if it is missing. Default `dibs`. */
  readonly schema?: string | undefined
  /** Where events go: a pino logger, or one with the same methods. Default: Dibs writes failures to stderr, one line each. `false`: Dibs writes nothing. */
  readonly logger?: Logger | false | undefined
  /**
   * How `open` treats the version of the schema. `auto` (default) brings the schema up to date. `check` fails if the version does not fit this release. `off`
   * does not check.
   */
  readonly migrate?: 'auto' | 'check' | 'off' | undefined
  /** Keep one connection that listens for notifications. Without it everything works by polling. Default true. */
  readonly listen?: boolean | undefined
  /** Use prepared statements, whose plans the server keeps by name. Turn this off behind PgBouncer in transaction mode. Default true. */
  readonly prepared?: boolean | undefined
  /**
   * Do maintenance in the background, such as removing expired rows. One process per schema removes them, every 30 seconds. The first round comes 15 to 30
   * seconds after `open`. Maintenance does not keep the process alive. Default true.
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

/** Checks the options, because callers without types may pass anything. Only `undefined` means that an option was not given. */
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

/** Checks for `options` too, because a `pg.Client` has the same methods as a pool but no `options`. */
function checkPool(pool: unknown): void {
  if (
    hasMethods(pool, 'connect', 'query', 'on', 'off', 'end') &&
    isObject(Reflect.get(Object(pool), 'options'))
  )
    return
  throw new InvalidInputError('pool', `must be a Pool of pg, not ${nameGiven(pool)}`)
}

const isObject = (value: unknown): boolean => typeof value === 'object' && value !== null
