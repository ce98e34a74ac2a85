import { createHash } from 'node:crypto'
import { renderSchema } from './identifier.js'
import type { TextValue } from './text-values.js'

/**
 * One of our SQL statements, with `{schema}` in place of the schema's name.
 *
 * All values are strings or null in both directions, because only these mean the same in seven client libraries. Each
 * parameter is cast twice at each occurrence (`$1::text::jsonb`), because postgres.js would encode `$1::jsonb` a second
 * time. Each column is returned as `::text`, never as `void` or `record`, which Prisma cannot read. Times are
 * microseconds since 1970, because the text of a timestamp depends on the DateStyle of the session.
 */
export interface Statement {
  readonly text: string
  /** True if the statement changes nothing, so that a lost answer leaves nothing unknown. */
  readonly readOnly: boolean
}

export function statement(text: string, { readOnly = false } = {}): Statement {
  return Object.freeze({ text, readOnly })
}

/**
 * Writes the values into a statement, so that it can share one message with BEGIN or COMMIT.
 */
export function inlineValues({ text }: RenderedStatement, values: readonly TextValue[]): string {
  return text.replace(/\$(\d+)\b/g, (_, place) => {
    const value = values[Number(place) - 1]
    return value === null || value === undefined ? 'null' : quoteLiteral(value)
  })
}

/** Quotes a string for SQL, independent of `standard_conforming_strings`. */
export function quoteLiteral(value: string): string {
  const quoted = `'${value.replaceAll("'", "''")}'`
  return quoted.includes('\\') ? ` E${quoted.replaceAll('\\', '\\\\')}` : quoted
}

/** A statement for one schema, with a name under which the server may keep its plan. */
export interface RenderedStatement extends Statement {
  readonly name: string
}

export function renderStatement(source: Statement, schema: string): RenderedStatement {
  return nameStatement({ ...source, text: renderSchema(source.text, schema) })
}

/** Names a statement by its content, so that two releases on one pooled connection never use one name for two statements. */
export function nameStatement(source: Statement): RenderedStatement {
  const name = `dibs_${createHash('sha256').update(source.text).digest('hex').slice(0, 16)}`
  return Object.freeze({ ...source, name })
}
