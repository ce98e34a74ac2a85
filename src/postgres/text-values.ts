/** A value of a statement of Dibs; see `statement.ts`. */
export type TextValue = string | null
export type TextRow = Record<string, string | null>

/** A PostgreSQL array literal, to be cast `$1::text::text[]`. */
export function textArray(values: readonly TextValue[]): string {
  const items = values.map((value) =>
    value === null ? 'null' : `"${value.replaceAll('\\', '\\\\').replaceAll('"', '\\"')}"`,
  )
  return `{${items.join(',')}}`
}

/** The time of a column selected as `(extract(epoch from …) * 1000000)::bigint::text`. */
export function dateFromMicros(micros: string): Date {
  return new Date(Number(micros) / 1000)
}
