import { Command } from 'commander'
import { addDatabaseOptions } from './database-options.js'
import { parsePort } from './parse-port.js'
import { type ServeOptions, serve } from './serve.js'

export function serveCommand(): Command {
  return addDatabaseOptions(new Command('serve'))
    .description(
      'Open a database, started and migrated if need be, and answer /healthz and /readyz over HTTP.',
    )
    .option('--host <host>', 'the address to listen on, 0.0.0.0 for all', '127.0.0.1')
    .option('--port <port>', 'the port to listen on, 0 for a free one', parsePort, 4040)
    .action((options: ServeOptions) => serve(options))
}
