import type { ServerSettings } from './embedded-options.js'

/**
 * Settings for tests: nothing waits for the disk. A crash of the machine or of the server, even by `kill -9`, may
 * damage the data. After a crash, start with an empty folder.
 *
 * @example
 * const dibs = await Dibs.open({ embedded: { temporary: true, settings: fastSettings } })
 */
export const fastSettings: ServerSettings = Object.freeze({
  fsync: false,
  synchronous_commit: false,
  full_page_writes: false,
})

/** The command line of a server. The settings of the user come first, so that they cannot override those of Dibs. */
export function toArguments(data: string, port: number, settings: ServerSettings): string[] {
  const all = {
    // The role has the name of the default schema, which the default search path would therefore include.
    search_path: 'public',
    ...settings,
    port,
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    // Dibs reads the reason of a failure in the log.
    log_destination: 'stderr',
    logging_collector: false,
  }
  return [
    '-D',
    data,
    ...Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${toSettingValue(value)}`]),
  ]
}

/** Writes a value as PostgreSQL expects it. */
export function toSettingValue(value: string | number | boolean): string {
  if (typeof value === 'boolean') return value ? 'on' : 'off'
  return String(value)
}
