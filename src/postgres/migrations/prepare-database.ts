import { ConnectionLostError } from '../../errors.js'
import type { Connections } from '../connections.js'
import { retry } from '../retry.js'
import { inspectServer } from '../server.js'
import { describeUrl } from '../url.js'
import { checkMigrations, migrate } from './migrate.js'

/** Connects, checks the server, and brings the schema up to date or checks its version. */
export async function prepareDatabase(
  connections: Connections,
  mode: 'auto' | 'check' | 'off',
  isEmbedded: boolean,
): Promise<void> {
  const { connectionString } = connections.pool.options
  await retry(() => inspectServer(connections, describeUrl(connectionString)), {
    // An embedded server that was just killed is back soon.
    isRetryable: (error) => isEmbedded && error instanceof ConnectionLostError,
    ...{ baseMs: 400, maxMs: 2_000, minMs: 200, maxAttempts: 8 },
  })
  if (mode === 'off') return
  const { migrations } = await import('./generated/migrations.js')
  if (mode === 'auto') await migrate(connections, migrations)
  else await checkMigrations(connections, migrations)
}
