import { InvalidInputError } from '../errors.js'
import { showGiven } from '../options/name-given.js'

const SCHEMA_NAME = /^[A-Za-z_][A-Za-z0-9_]{0,49}$/

/** The one place where a name becomes part of SQL text. */
export function quoteIdentifier(name: string): string {
  if (name === '' || name.includes('\0') || Buffer.byteLength(name) > 63) {
    throw new InvalidInputError('identifier', `must be 1 to 63 bytes without NUL, not ${showGiven(name)}`)
  }
  return `"${name.replaceAll('"', '""')}"`
}

/** Quoting makes any name safe. The narrow form keeps it readable in logs, channels and dumps. */
export function checkSchemaName(name: unknown): string {
  if (typeof name !== 'string' || !SCHEMA_NAME.test(name) || /^pg_|^information_schema$/i.test(name)) {
    throw new InvalidInputError(
      'schema',
      `must be 1 to 50 letters, digits and underscores that do not start with a digit or "pg_", not ${showGiven(name)}`,
    )
  }
  return name
}

/** Replaces `{schema}` in SQL by the quoted name of the schema. */
export function renderSchema(text: string, schema: string): string {
  return text.replaceAll('{schema}', quoteIdentifier(checkSchemaName(schema)))
}
