import pg, { type Client, type PoolConfig } from 'pg'
import { ExplorationError } from '../../../errors.js'
import type { StageOptions } from './stage-options.js'

/** The explorer's own connection, and what it found there. */
export interface Control {
  readonly client: ControlConnection
  readonly serverVersion: number
  /** The server's default. */
  readonly isolation: string
  readonly searchPath: string
  /** How actors connect. */
  readonly config: PoolConfig
  /** The same for other drivers. */
  readonly url: string
  /** Deadlocks can be ended soon, with a victim that is known. */
  readonly setsDeadlockTimeout: boolean
}

/** As `pg` declares it: what overrides all of its overloads at once has no types. */
type ControlConnection = Client & Pick<ControlClient, 'pid' | 'reconnect'>

/** One question at a time; `pg` would line them up as well, and complain. */
class ControlClient extends pg.Client {
  readonly #config: PoolConfig
  #last: Promise<unknown> = Promise.resolve()
  /** In its place since the server was away. */
  #later: pg.Client | undefined

  constructor(config: PoolConfig) {
    super(config)
    this.#config = config
    this.on('error', () => {})
  }

  /** The backend that serves it, as the server said when it greeted us; a pooler makes one up. */
  get pid(): number {
    const current: pg.Client & { processID?: number } = this.#later ?? this
    return current.processID ?? 0
  }

  async reconnect(): Promise<void> {
    const later = new pg.Client(this.#config)
    later.on('error', () => {})
    await later.connect()
    await this.#later?.end().catch(() => {})
    this.#later = later
  }

  // biome-ignore lint/suspicious/noExplicitAny: all of pg's overloads at once
  override query(...parameters: any[]): any {
    // @ts-expect-error: the overloads are pg's own
    const answer = this.#last.then(() => this.#later?.query(...parameters) ?? super.query(...parameters))
    this.#last = answer.catch(() => {})
    return answer
  }

  override async end(): Promise<void> {
    await this.#later?.end()
    await super.end()
  }
}

/** `pool.options` hides the password from enumeration. */
function configOf({ pool, url }: StageOptions): PoolConfig {
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

/** Connects, and refuses what exploring cannot work with. */
export async function connectControl(options: StageOptions): Promise<Control> {
  const config = configOf(options)
  if (config.ssl || /[?&]sslmode=(?!disable)/.test(config.connectionString ?? ''))
    throw new ExplorationError(
      'What is sent must be read, and TLS cannot be looked into. Connect without it (sslmode=disable): a test database on this machine needs none.',
      'connection',
    )
  const client: ControlConnection = new ControlClient({ ...config, application_name: 'dibs explorer' })
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
  client: ControlConnection,
  options: StageOptions,
): Promise<Omit<Control, 'client' | 'config' | 'url'>> {
  const { rows } = await client.query<
    Record<'version' | 'role' | 'isolation' | 'path', string> & { pid: number }
  >(
    `select pg_backend_pid() as pid, current_user as role, current_setting('server_version_num') as version,
       current_setting('default_transaction_isolation') as isolation, current_setting('search_path') as path`,
  )
  const { pid, version, role, isolation, path } = rows[0] as (typeof rows)[0]
  if (client.pid !== pid)
    throw new ExplorationError(
      'This connection goes through a pooler (PgBouncer or the like). It must be known which backend serves whom: give the server itself.',
      'connection',
    )
  return {
    isolation,
    searchPath: path,
    serverVersion: Number(version),
    setsDeadlockTimeout: await trySetting(client, role, options),
  }
}

async function trySetting(client: Client, role: string, options: StageOptions): Promise<boolean> {
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
