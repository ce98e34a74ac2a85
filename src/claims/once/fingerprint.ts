import { createHash } from 'node:crypto'
import { toJson } from '../../postgres/json.js'

/** Hashes a request. Two requests whose JSON differs only in the order of fields have one hash. */
export function fingerprintOf(field: string, request: unknown): string {
  const canonical = writeCanonical(JSON.parse(toJson(field, request)))
  return createHash('sha256').update(canonical).digest('hex')
}

/** JSON with the fields of its objects in order. */
export function writeCanonical(value: unknown): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map(writeCanonical).join(',')}]`
  const fields = Object.entries(value).toSorted(([a], [b]) => (a < b ? -1 : 1))
  return `{${fields.map(([name, inner]) => `${JSON.stringify(name)}:${writeCanonical(inner)}`).join(',')}}`
}
