import pg, { type Client, type PoolConfig } from 'pg'
import { ExplorationError } from '../../../errors.js'
import type { TestSessionOptions } from './test-session-options.js'

/** The explorer's own connection, with facts about the server. */
export interface ControlConnection {
  readonly client: ControlClientType
  readonly serverVersion: number
  /** The server's default isolation level. */
  readonly isolation: string
  readonly searchPath: string
  /** How actors connect. */
  readonly config: PoolConfig
  /** `config` as a URL, for other drivers. */
  readonly url: string
  /** True if the role may set `deadlock_timeout`, so that deadlocks end soon and always have the same victim. */
  readonly setsDeadlockTimeout: boolean
}

/** Adds the types of `pg.Client`, since `ControlClient.query` overrides all overloads at once and has none. */
type ControlClientType = Client & Pick<ControlClient, 'pid' | 'reconnect'>

/** A client that sends one query at a time, since `pg` warns when queries wait in its queue. */
class ControlClient extends pg.Client {
  readonly #config: PoolConfig
  #last: Promise<unknown> = Promise.resolve()
  /** The client that replaces this one after the server was unavailable. */
  #replacement: pg.Client | undefined

  constructor(config: PoolConfig) {
    super(config)
    this.#config = config
    this.on('error', () => {})
  }

  /** The process id of the backend, as received on connect. A pooler sends a process id of its own. */
  get pid(): number {
    const current: pg.Client & { processID?: number } = this.#replacement ?? this
    return current.processID ?? 0
  }

  async reconnect(): Promise<void> {
    const client = new pg.Client(this.#config)
    client.on('error', () => {})
    await client.connect()
    await this.#replacement?.end().catch(() => {})
    this.#replacement = client
  }

  // biome-ignore lint/suspicious/noExplicitAny: all of pg's overloads at once
  override query(...parameters: any[]): any {
    const result = this.#last.then(() => {
      // @ts-expect-error: the overloads are pg's own
      return this.#replacement?.query(...parameters) ?? super.query(...parameters)
    })
    this.#last = result.catch(() => {})
    return result
  }

  override async end(): Promise<void> {
    await this.#replacement?.end()
    await super.end()
  }
}

/** The password must be read by name, since `pool.options` hides it from enumeration. */
function configOf({ pool, url }: TestSessionOptions): PoolConfig {
  if (!pool) return { connectionString: url }
  const { Client: _, ...options } = pool.options as PoolConfig & { Client?: unknown }
  return { ...options, password: pool.options.password }
}

function urlOf(client: Client, { connectionString, options }: PoolConfig): string {
  if (connectionString) return connectionString
  const url = new URL('postgres://localhost')
  url.hostname = client.host
  url.port = String(client.port)
  url.username = client.user ?? ''
  url.password = typeof client.password === 'string' ? client.password : ''
  url.pathname = `/${client.database ?? ''}`
  if (options) url.searchParams.set('options', options)
  return url.href
}

/** Connects, and refuses a server with which the explorer cannot work. */
export async function openControlConnection(options: TestSessionOptions): Promise<ControlConnection> {
  const config = configOf(options)
  if (config.ssl || /[?&]sslmode=(?!disable)/.test(config.connectionString ?? ''))
    throw new ExplorationError(
      'What is sent must be read, and TLS cannot be looked into. Connect without it (sslmode=disable): a test database on this machine needs none.',
      'connection',
    )
  const client: ControlClientType = new ControlClient({ ...config, application_name: 'dibs explorer' })
  try {
    await client.connect()
  } catch (error) {
    throw new ExplorationError(
      `The database cannot be reached: ${(error as Error).message}.`,
      'connection',
      undefined,
      {
        cause: error,
      },
    )
  }
  try {
    return { client, config, url: urlOf(client, config), ...(await inspect(client, options)) }
  } catch (error) {
    await client.end()
    throw error
  }
}

async function inspect(
  client: ControlClientType,
  options: TestSessionOptions,
): Promise<Omit<ControlConnection, 'client' | 'config' | 'url'>> {
  const { rows } = await client.query<
    Record<'version' | 'role' | 'isolation' | 'path', string> & { pid: number }
  >(
    `select pg_backend_pid() as pid, current_user as role, current_setting('server_version_num') as version,
       current_setting('default_transaction_isolation') as isolation, current_setting('search_path') as path`,
  )
  const { pid, version, role, isolation, path } = rows[0] as (typeof rows)[0]
  if (client.pid !== pid)
    throw new ExplorationError(
      'This connection goes through a pooler (PgBouncer or the like). The explorer must know the backend of each connection: connect to the server itself.',
      'connection',
    )
  return {
    isolation,
    searchPath: path,
    serverVersion: Number(version),
    setsDeadlockTimeout: await trySetting(client, role, options),
  }
}

async function trySetting(client: Client, role: string, options: TestSessionOptions): Promise<boolean> {
  if (options.slowDeadlocks) return false
  try {
    await client.query("set deadlock_timeout = '1s'")
    return true
  } catch (error) {
    throw new ExplorationError(
      `The role ${role} has no right to set deadlock_timeout, so a deadlock would take the server's own time and have a victim of its choice. ` +
        `Explore as a superuser; or, from PostgreSQL 15 on, \`grant set on parameter deadlock_timeout to ${pg.escapeIdentifier(role)}\`; or pass slowDeadlocks: true and live with it.`,
      'privilege',
      undefined,
      { cause: error },
    )
  }
}
