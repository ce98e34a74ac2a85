import type { Checkout } from '../checkout.js'
import { readFault } from '../fault.js'
import { quoteIdentifier, renderSchema } from '../identifier.js'
import { queryText } from '../pg-query.js'
import type { AppliedMigration } from './check-applied.js'
import { explainReadError } from './migration-errors.js'
import type { Migration } from './read-migrations.js'

export async function selectApplied(
  { client }: Checkout,
  schema: string,
): Promise<readonly AppliedMigration[]> {
  try {
    const rows = await queryText(
      client,
      renderSchema(
        `select version::text, name::text, checksum::text, compatible_from::text
         from {schema}.migration order by migration.version`,
        schema,
      ),
    )
    return rows.map(({ version, name, checksum, compatible_from }) => ({
      version: Number(version),
      name: `${name}`,
      checksum: `${checksum}`,
      compatibleFrom: Number(compatible_from),
    }))
  } catch (error) {
    const sqlState = readFault(error)?.sqlState
    if (sqlState === '42P01' || sqlState === '3F000') return [] // no table, no schema
    throw explainReadError(error, schema)
  }
}

export async function createMigrationTable({ client }: Checkout, schema: string): Promise<void> {
  // Checked first, because CREATE SCHEMA IF NOT EXISTS needs the right to create even if the schema exists.
  const found = await queryText(client, 'select 1 from pg_catalog.pg_namespace where nspname = $1::text', [
    schema,
  ])
  if (found.length === 0) await client.query(`create schema ${quoteIdentifier(schema)}`)
  const table = await queryText(client, 'select pg_catalog.to_regclass($1::text)::text as "table"', [
    `${quoteIdentifier(schema)}.migration`,
  ])
  if (table[0]?.table) return
  await client.query(
    renderSchema(
      `create table {schema}.migration (
         version int primary key check (version > 0),
         name text not null,
         checksum text not null,
         compatible_from int not null check (compatible_from between 1 and version),
         applied_at timestamptz not null default pg_catalog.clock_timestamp()
       )`,
      schema,
    ),
  )
}

export async function recordMigration(
  { client }: Checkout,
  schema: string,
  migration: Migration,
): Promise<void> {
  const { version, name, checksum, compatibleFrom } = migration
  await client.query(
    renderSchema(
      'insert into {schema}.migration (version, name, checksum, compatible_from) values ($1, $2, $3, $4)',
      schema,
    ),
    [version, name, checksum, compatibleFrom],
  )
}
