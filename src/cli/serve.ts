import { once } from 'node:events'
import { Dibs } from '../dibs.js'
import { DibsError } from '../errors.js'
import type { Health } from '../ops/health.js'
import { describeUrl } from '../postgres/url.js'
import { HttpServer } from '../server/http-server.js'
import type { Address } from '../server/listen.js'
import { type DatabaseOptions, toOpenOptions } from './database-options.js'
import { onStopSignal } from './on-stop-signal.js'
import { say } from './say.js'
import { showProgress } from './show-progress.js'

export type ServeOptions = DatabaseOptions & Address

/** Serves until it is told to stop. HTTP comes first, so that probes are answered while the database starts. */
export async function serve({ host, port, ...database }: ServeOptions): Promise<void> {
  const stop = onStopSignal()
  const server = await HttpServer.open({ host, port })
  stop.addEventListener('abort', () => void server.close())
  let dibs: Dibs | undefined
  try {
    say(`Listening on ${server.url}, opening the database …`)
    dibs = await open(database, stop)
    if (!dibs) return
    server.opened(dibs)
    const health = await dibs.health()
    if (stop.aborted) return
    sayReady(server.url, describeUrl(dibs.url), health)
    await once(stop, 'abort')
  } finally {
    await server.close()
    await dibs?.close()
  }
}

/** Undefined if it cannot be opened, but is not wanted any more either. */
async function open(database: DatabaseOptions, stop: AbortSignal): Promise<Dibs | undefined> {
  showProgress() // until the end: the embedded server may be lost later on
  try {
    return await Dibs.open(toOpenOptions(database))
  } catch (error) {
    if (stop.aborted && error instanceof DibsError) return undefined
    throw error
  }
}

function sayReady(url: string, database: string, { schema, schemaVersion }: Health): void {
  say(`Ready on ${url}`)
  say(`Database ${database}, schema "${schema}" at version ${schemaVersion ?? 'unknown'}`)
  say('Ctrl-C stops it')
}
