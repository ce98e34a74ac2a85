import { isPlain } from './is-plain.js'

/** Names a row of the caller's table, for an error message. */
export function describeRow(table: string, id: unknown): string {
  return `row ${JSON.stringify(idToJson(id))} of table "${table}"`
}

/** Converts the id of a row to a value that JSON can express, for the fields of an error. */
export function idToJson(id: unknown): unknown {
  if (typeof id === 'bigint') return `${id}`
  if (id instanceof Uint8Array) return `\\x${Buffer.from(id).toString('hex')}`
  if (!isPlain(id)) return id
  return Object.fromEntries(Object.entries(id).map(([name, value]) => [name, idToJson(value)]))
}
