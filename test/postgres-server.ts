import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import pg from 'pg'
// Built, because the supervisor is a process of its own, and below the face, which refuses what some tests need.
import type { EmbeddedOptions } from '../build/postgres/embedded/embedded-options.js'
import { fastSettings } from '../build/postgres/embedded/settings.js'
import { SupervisedServer } from '../build/postgres/embedded/supervised-server.js'
import { until } from './until.js'

export interface PostgresServer {
  readonly url: string
  stop(): Promise<void>
}

export interface StartOptions extends Pick<EmbeddedOptions, 'binaries'> {
  readonly durable?: boolean
  /** In recovery, and so read-only. */
  readonly standby?: boolean
}

const settings = { max_connections: 300, shared_buffers: '64MB' }

/** A throw-away server. Unless `durable`, nothing that crashes a server may be tested on it. */
export async function startPostgres({
  binaries,
  durable,
  standby,
}: StartOptions = {}): Promise<PostgresServer> {
  const server = await SupervisedServer.open(
    { temporary: true, binaries, settings: durable ? settings : { ...settings, ...fastSettings } },
    { onStep() {}, onLost() {}, onUrlChanged() {} },
  )
  if (standby) await makeStandby(server.url)
  return { url: server.url, stop: () => server.close() }
}

/** A read-only standby, though of no primary: its supervisor starts it again after it was stopped. */
async function makeStandby(url: string): Promise<void> {
  const data = await ask(url, "select current_setting('data_directory') as answer")
  const pid = await ask(url, "select (string_to_array(pg_read_file('postmaster.pid'), e'\\n'))[1] as answer")
  writeFileSync(join(data, 'standby.signal'), '')
  process.kill(Number(pid), 'SIGINT')
  await until(
    () => ask(url, 'select pg_is_in_recovery() as answer').then(Boolean, () => false),
    'the server to be back as a standby',
    30_000,
  )
}

async function ask(url: string, question: string): Promise<string> {
  const client = new pg.Client(url)
  client.on('error', () => {}) // it may be stopped under us
  try {
    await client.connect()
    return (await client.query<{ answer: string }>(question)).rows[0]?.answer ?? ''
  } finally {
    await client.end()
  }
}
