import type pg from 'pg'
import { InvalidInputError } from '../errors.js'
import { hasMethods, nameGiven } from '../options/name-given.js'
import { checked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { boolean, oneOf } from '../options/value-options.js'
import { checkEmbedded, type EmbeddedOptions } from './embedded/embedded-options.js'
import { checkSchemaName } from './identifier.js'
import { checkLogger } from './log-events.js'
import type { Logger } from './logger.js'
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

export const openOptions = optionTable<OpenOptions>()('Dibs.open', {
  url: checked((_, url) => parseUrl(url)),
  pool: checked(checkPool),
  embedded: checked(checkEmbedded),
  schema: checked((_, name) => checkSchemaName(name), { default: 'dibs', bounds: '1 to 50 characters' }),
  logger: checked(checkLogger),
  migrate: oneOf(['auto', 'check', 'off'], { default: 'auto' }),
  listen: boolean({ default: true }),
  prepared: boolean({ default: true }),
  maintain: boolean({ default: true }),
})

/** Checks the options of `Dibs.open` and fills in the defaults. */
export function readOpenOptions(options: OpenOptions | undefined) {
  const read = openOptions.read(options)
  const { url, pool, embedded } = read
  const ways = Object.entries({ url, pool, embedded }).filter(([, value]) => value !== undefined)
  const [first, second] = ways.map(([name]) => name)
  if (second !== undefined)
    throw new InvalidInputError(second, `and \`${first}\` are two ways to say where to connect; give one`)
  return read
}

/** Requires `options` too, because a `pg.Client` has the same methods as a pool but no `options`. */
function checkPool(field: string, pool: unknown): void {
  const hasPoolMethods = hasMethods(pool, 'connect', 'query', 'on', 'off', 'end')
  const options: unknown = Reflect.get(Object(pool), 'options')
  if (hasPoolMethods && typeof options === 'object' && options !== null) return
  throw new InvalidInputError(field, `must be a Pool of pg, not ${nameGiven(pool)}`)
}
