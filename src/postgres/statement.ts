import { createHash } from 'node:crypto'
import { renderSchema } from './identifier.js'
import type { TextValue } from './text-values.js'

/**
 * One of our own SQL statements, with `{schema}` where the schema's name goes.
 *
 * What crosses the wire is text or null, both ways, since that alone means the same in seven client libraries.
 * Every parameter is cast twice at every occurrence (`$1::text::jsonb`: postgres.js would encode `$1::jsonb` a
 * second time), and every column comes back as `::text`, never `void` or `record` (Prisma cannot read those).
 * Times leave as microseconds since 1970, because a timestamp's text depends on the session's DateStyle.
 */
export interface Statement {
  readonly text: string
  /** It changes nothing, so a lost reply leaves nothing unknown. */
  readonly readOnly: boolean
}

export function statement(text: string, { readOnly = false } = {}): Statement {
  return Object.freeze({ text, readOnly })
}

/**
 * A statement with its values written into it, to share a message with others: BEGIN before it, or COMMIT after it, then
 * cost no round trip of their own.
 */
export function inlineValues({ text }: RenderedStatement, values: readonly TextValue[]): string {
  return text.replace(/\$(\d+)\b/g, (_, place) => {
    const value = values[Number(place) - 1]
    return value === null || value === undefined ? 'null' : quoteLiteral(value)
  })
}

/** A text as it stands in SQL, the same whatever `standard_conforming_strings` is. */
export function quoteLiteral(value: string): string {
  const quoted = `'${value.replaceAll("'", "''")}'`
  return quoted.includes('\\') ? ` E${quoted.replaceAll('\\', '\\\\')}` : quoted
}

/** A statement as it is sent: for one schema, with a name under which the server may keep its plan. */
export interface RenderedStatement extends Statement {
  readonly name: string
}

export function renderStatement(source: Statement, schema: string): RenderedStatement {
  return nameStatement({ ...source, text: renderSchema(source.text, schema) })
}

/** Named by content: two releases that share a pooled connection never meet under one name. */
export function nameStatement(source: Statement): RenderedStatement {
  const name = `dibs_${createHash('sha256').update(source.text).digest('hex').slice(0, 16)}`
  return Object.freeze({ ...source, name })
}
