import { BusyError, ClosedError, ConnectionLostError, type DibsError, SetupError } from '../errors.js'
import { showError } from '../options/name-given.js'
import { CONNECT_MS, type Connections } from './connections.js'
import { readFault } from './fault.js'
import { transactionStatus } from './pg-client-state.js'
import { queryText } from './pg-query.js'
import type { TextRow } from './text-values.js'

const OLDEST = 14

/** Reads the properties of the server and its sessions. Refuses a server that Dibs cannot use. */
export async function inspectServer(connections: Connections, where: string): Promise<void> {
  const found = await ask(connections, where)
  const major = Math.floor(Number(found.version) / 10_000)
  if (major < OLDEST) {
    throw new SetupError(`The server at ${where} is PostgreSQL ${major}. Dibs needs ${OLDEST} or newer.`)
  }
  if (found.standby === 'true') {
    throw new SetupError(`The server at ${where} is a read-only standby. Connect to the primary.`)
  }
  connections.serverMajor = major
  connections.statementTimeoutMs = Number(found.timeout)
  connections.autocommitFits = found.isolation === 'read committed' && found.readonly === 'off' // guard: transaction.isolation-alone
}

async function ask(connections: Connections, where: string): Promise<TextRow> {
  try {
    const [row] = await connections.use(({ client }) => {
      if (transactionStatus(client) === undefined) {
        throw new SetupError(
          'The given pool has native clients, and its version of pg cannot tell whether they are inside a transaction. Update pg to 8.21 or newer, or use the JavaScript client.',
        )
      }
      return queryText(client, inspection)
    }, CONNECT_MS)
    return row ?? {}
  } catch (error) {
    throw explain(error, where)
  }
}

const inspection = `
  select pg_catalog.current_setting('server_version_num')::text as "version",
         pg_catalog.current_setting('default_transaction_isolation')::text as "isolation",
         pg_catalog.current_setting('default_transaction_read_only')::text as "readonly",
         pg_catalog.pg_is_in_recovery()::text as "standby",
         (select setting from pg_catalog.pg_settings where name = 'statement_timeout')::text as "timeout"`

/** True if the server refuses the connection: the user, the password, the database or the address of the client is wrong. */
const refusals = new Set(['28000', '28P01', '3D000', '42501', '0A000'])

function explain(error: unknown, where: string): DibsError {
  if (error instanceof SetupError || error instanceof ClosedError) return error
  const fault = readFault(error)
  const why = (fault?.message ?? showError(error)).replace(/\.$/, '')
  if (fault?.sqlState && refusals.has(fault.sqlState)) {
    const message = `The server at ${where} refuses the connection: ${why}. Check user, password and database.`
    return new SetupError(message, { cause: error })
  }
  if (fault?.kind === 'connection' || error instanceof BusyError) {
    const advice = /SSL/.test(why)
      ? ' Use sslmode=disable, or let the server offer SSL.'
      : ' Check that PostgreSQL runs there and that the address is right.'
    return new ConnectionLostError(`Cannot connect to ${where}: ${why}.${fault?.sqlState ? '' : advice}`, {
      cause: error,
    })
  }
  return new SetupError(`Cannot use the server at ${where}: ${why}.`, { cause: error })
}
