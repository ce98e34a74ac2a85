import { once } from 'node:events'
import { Command, InvalidArgumentError, Option } from 'commander'
import { Dibs } from '../dibs.js'
import { DibsError } from '../errors.js'
import type { Health } from '../ops/health.js'
import { describeUrl } from '../postgres/url.js'
import { HttpServer } from '../server/http-server.js'
import type { Address } from '../server/listen.js'
import { addDatabaseOptions, type DatabaseOptions, toOpenOptions } from './database-options.js'
import { onStopSignal } from './on-stop-signal.js'
import { printLine } from './print-line.js'
import { showProgress } from './show-progress.js'

type ServeOptions = DatabaseOptions & Address

/** Serves until a stop signal. HTTP starts first, so that probes get answers while the database starts. */
async function serve({ host, port, ...database }: ServeOptions): Promise<void> {
  const stop = onStopSignal()
  const server = await HttpServer.open({ host, port })
  stop.addEventListener('abort', () => void server.close())
  let dibs: Dibs | undefined
  try {
    printLine(`Listening on ${server.url}, opening the database …`)
    dibs = await open(database, stop)
    if (!dibs) return
    server.opened(dibs)
    const health = await dibs.health()
    if (stop.aborted) return
    printReady(server.url, describeUrl(dibs.url), health)
    await once(stop, 'abort')
  } finally {
    await server.close()
    await dibs?.close()
  }
}

/** Returns undefined if opening failed after a stop signal. */
async function open(database: DatabaseOptions, stop: AbortSignal): Promise<Dibs | undefined> {
  showProgress() // until the end, because the embedded server may be lost later
  try {
    return await Dibs.open(toOpenOptions(database))
  } catch (error) {
    if (stop.aborted && error instanceof DibsError) return undefined
    throw error
  }
}

function printReady(url: string, database: string, { schema, schemaVersion }: Health): void {
  printLine(`Ready on ${url}`)
  printLine(`Database ${database}, schema "${schema}" at version ${schemaVersion ?? 'unknown'}`)
  printLine('Ctrl-C stops it')
}

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

function parsePort(text: string): number {
  const port = Number(text)
  if (/^\d{1,5}$/.test(text) && port <= 65_535) return port
  throw new InvalidArgumentError('It must be a number from 0 to 65535; 0 picks a free port.')
}
