import type { Column } from '../postgres/rows/table.js'

/** A value as a text that no setting of a session changes, and that says all of it: a time as JSON has it, a number that is not whole by its bytes. */
export const exactText = (column: Column, value: string): string => {
  if (isFloat(column)) return `pg_catalog.encode(pg_catalog.float8send(${value}::pg_catalog.float8), 'hex')`
  return isTime(column)
    ? `pg_catalog.to_json(${value}::${column.cast}) operator(pg_catalog.#>>) '{}'`
    : `${value}::pg_catalog.text`
}

/** The same as a text that the server reads as that value. */
export const readExactText = (column: Column, text: string): string =>
  isFloat(column) ? `${Buffer.from(text, 'hex').readDoubleBE()}` : text

/** The server rounds its texts as `extra_float_digits` says. */
const isFloat = ({ base }: Column): boolean => base === 'float8' || base === 'float4'
const isTime = ({ base }: Column): boolean => ['date', 'timestamp', 'timestamptz'].includes(`${base}`)
