import { DibsError, SetupError } from '../../errors.js'
import { readFault, translateError } from '../fault.js'
import type { Migration } from './read-migrations.js'

/** Explains why the table `migration` cannot be read. */
export function explainReadError(error: unknown, schema: string): unknown {
  const fault = readFault(error)
  if (fault?.sqlState === '42501') {
    return new SetupError(
      `Schema "${schema}" cannot be read by this user: ${fault.message}. As its owner: grant usage on schema "${schema}" and select on all its tables.`,
      { cause: error },
    )
  }
  if (fault?.sqlState === '42703') {
    return new SetupError(
      `The table "${schema}".migration is not the register of Dibs, or that of a much newer release: ${fault.message}. Choose another schema, or upgrade the dibs package.`,
      { cause: error },
    )
  }
  return translateError(error)
}

const advice: Record<string, string> = {
  '25006':
    ' This user is set to read-only transactions: alter role … set default_transaction_read_only = off.',
  '25P04': ' Raise transaction_timeout for this user: alter role … set transaction_timeout = 0.',
  '57014': ' Raise statement_timeout for this user: alter role … set statement_timeout = 0.',
}

/** Explains why a migration cannot be applied. */
export function explainApplyError(error: unknown, schema: string, migration: Migration | undefined): unknown {
  if (error instanceof DibsError) return error
  const fault = readFault(error)
  if (!fault?.sqlState) return translateError(error)
  if (fault.sqlState === '42501') {
    return new SetupError(
      `Schema "${schema}" cannot be made or changed by this user: ${fault.message}. Migrate as the owner of the schema, or as a user with CREATE on the database if it is not there yet; others then open with migrate: 'check'.`,
      { cause: error },
    )
  }
  const what = migration ? `Migration ${migration.version} (${migration.name})` : 'The migration'
  return new SetupError(
    `${what} of schema "${schema}" failed: ${fault.message}.${advice[fault.sqlState] ?? ''}`,
    {
      cause: error,
    },
  )
}
