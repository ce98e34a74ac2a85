import type { ServerSettings } from './embedded-options.js'

/**
 * Settings for a server whose data may be lost when the machine crashes: nothing waits for the disk. For tests.
 * A crash of the server alone, or `kill -9` of it, may damage the data as well: start anew then.
 *
 * @example
 * const dibs = await Dibs.open({ embedded: { temporary: true, settings: fastSettings } })
 */
export const fastSettings: ServerSettings = Object.freeze({
  fsync: false,
  synchronous_commit: false,
  full_page_writes: false,
})

/** The command line of a server. What the user set comes first, so that it cannot undo what must hold. */
export function toArguments(data: string, port: number, settings: ServerSettings): string[] {
  const all = {
    // The role is named like our schema: by default its tables would be looked for, and made, in there.
    search_path: 'public',
    ...settings,
    port,
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    // Failures are told from what it writes here.
    log_destination: 'stderr',
    logging_collector: false,
  }
  return ['-D', data, ...Object.entries(all).flatMap(([name, value]) => ['-c', `${name}=${toText(value)}`])]
}

/** As PostgreSQL writes it. */
export function toText(value: string | number | boolean): string {
  if (typeof value === 'boolean') return value ? 'on' : 'off'
  return String(value)
}
