import type { Column } from './catalog/table.js'

/**
 * Writes a value as unambiguous text that no session setting changes. A time is written as in JSON, a floating-point number by
 * its bytes.
 */
export const exactText = (column: Column, value: string): string => {
  if (isFloat(column)) return `pg_catalog.encode(pg_catalog.float8send(${value}::pg_catalog.float8), 'hex')`
  return isTime(column)
    ? `pg_catalog.to_json(${value}::${column.cast}) operator(pg_catalog.#>>) '{}'`
    : `${value}::pg_catalog.text`
}

/** Converts exact text to text that the server parses as the same value. */
export const readExactText = (column: Column, text: string): string =>
  isFloat(column) ? `${Buffer.from(text, 'hex').readDoubleBE()}` : text

/** The server rounds the text of a float according to `extra_float_digits`. */
const isFloat = ({ base }: Column): boolean => base === 'float8' || base === 'float4'
const isTime = ({ base }: Column): boolean => ['date', 'timestamp', 'timestamptz'].includes(`${base}`)
