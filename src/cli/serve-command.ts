import { Command, Option } from 'commander'
import { addDatabaseOptions } from './database-options.js'
import { parsePort } from './parse-port.js'
import { type ServeOptions, serve } from './serve.js'

export function serveCommand(): Command {
  return addDatabaseOptions(new Command('serve'))
    .description(
      'Open a database, started and migrated if need be, and answer /healthz and /readyz over HTTP.',
    )
    .option('--host <host>', 'the address to listen on, 0.0.0.0 for all', '127.0.0.1')
    .addOption(
      new Option('--port <port>', 'the port to listen on, 0 for a free one')
        .argParser(parsePort)
        .default(4040)
        .env('PORT'),
    )
    .action((options: ServeOptions) => serve(options))
}
