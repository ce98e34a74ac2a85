import { InvalidInputError } from '../../errors.js'
import { showGiven } from '../../options/name-given.js'
import { refuseValue } from '../../options/refuse-value.js'
import { toColumnJson } from '../../postgres/json.js'
import { checkCharacters } from '../../postgres/key.js'
import type { TextValue } from '../../postgres/text-values.js'
import { type ColumnType, integerRanges } from './table.js'

const UUID = /^\{?[0-9a-f]{4}(?:-?[0-9a-f]{4}){7}\}?$/i
const NUMERIC = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,4})?$/i
const DAY = /^(\d{4,6})-(\d{2})-(\d{2})/
const TIME = /^(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d{1,6})?)?$/
const ZONE = /(?:Z|[+-](?:0\d|1[0-5])(?::?[0-5]\d)?)$/i

/**
 * Converts a value to the text that PostgreSQL parses. Refuses a value that the column's type would not accept, because the
 * server's refusal would abort the caller's transaction. The server checks values of unknown types.
 */
export function toColumnText(field: string, type: ColumnType, value: unknown): TextValue {
  if (value === null) return null
  if (value === undefined)
    throw new InvalidInputError(field, 'must not be undefined. Leave it out, or give null')
  if (type.element) return toArrayText(field, type.element, value)
  if (type.labels) return checkLabel(field, type.labels, value)
  return (readers[type.base ?? ''] ?? readOther)(field, value, type)
}

type Reader = (field: string, value: unknown, type: ColumnType) => string

const readers: Readonly<Record<string, Reader>> = {
  ...Object.fromEntries(Object.keys(integerRanges).map((base) => [base, readInteger])),
  numeric: readNumeric,
  float4: readFloat,
  float8: readFloat,
  bool: readBoolean,
  uuid: readUuid,
  json: toColumnJson,
  jsonb: toColumnJson,
  bytea: readBytes,
  date: readTime,
  timestamp: readTime,
  timestamptz: readTime,
  text: readText,
  varchar: readText,
  bpchar: readText,
  name: (field, value, type) => checkBytes(field, readText(field, value, type), 63),
  char: (field, value, type) => checkBytes(field, readText(field, value, type), 1),
}

const refuse = (field: string, wanted: string, value: unknown): InvalidInputError =>
  refuseValue(field, `must be ${wanted}, not ${showGiven(value)}`)

/** Accepts exact integers only: JavaScript may already have rounded a number that is not safe. */
function readInteger(field: string, value: unknown, { base = '' }: ColumnType): string {
  const [least, most] = integerRanges[base] ?? [0n, 0n]
  const isWhole =
    typeof value === 'bigint' ||
    Number.isSafeInteger(value) ||
    (typeof value === 'string' && /^[+-]?\d{1,40}$/.test(value))
  const whole = isWhole ? BigInt(`${value}`.replace(/^\+/, '')) : undefined
  if (whole === undefined || whole < least || whole > most)
    throw refuse(field, `a whole number from ${least} to ${most}`, value)
  return `${whole}`
}

function readNumeric(field: string, value: unknown): string {
  if (typeof value === 'bigint') return `${value}`
  const isNumber =
    typeof value === 'number' &&
    Number.isFinite(value) &&
    (!Number.isInteger(value) || Number.isSafeInteger(value))
  if (isNumber || (typeof value === 'string' && NUMERIC.test(value))) return `${value}`
  throw refuse(field, 'a number that is exact: a safe integer, a decimal, a bigint, or digits as text', value)
}

function readFloat(field: string, value: unknown): string {
  if (typeof value === 'number' || typeof value === 'bigint') return `${value}`
  if (typeof value === 'string' && NUMERIC.test(value)) return value
  throw refuse(field, 'a number', value)
}

function readBoolean(field: string, value: unknown): string {
  if (typeof value === 'boolean') return `${value}`
  throw refuse(field, 'true or false', value)
}

function readUuid(field: string, value: unknown): string {
  if (typeof value === 'string' && UUID.test(value)) return value
  throw refuse(field, 'a UUID', value)
}

function readBytes(field: string, value: unknown): string {
  if (value instanceof Uint8Array) return `\\x${Buffer.from(value).toString('hex')}`
  throw refuse(field, 'a Buffer', value)
}

function readTime(field: string, value: unknown, { base }: ColumnType): string {
  if (value instanceof Date) {
    if (base !== 'timestamptz') throw refuseMoment(field, base)
    if (!Number.isNaN(value.getTime())) return writeDate(value)
  }
  if (typeof value === 'string' && (/^-?infinity$/.test(value) || isTime(value, base))) return value
  const wanted = "a text in the form of ISO 8601, such as '2030-12-31 23:59'"
  if (base === 'timestamptz') throw refuse(field, `a Date, or ${wanted}`, value)
  throw refuse(field, base === 'date' ? "a text such as '2030-12-31'" : wanted, value)
}

/**
 * A driver reads such a column in the time zone of the process. A value written in another time zone would not find its own row
 * again.
 */
function refuseMoment(field: string, base: string | undefined): InvalidInputError {
  const texts: Readonly<Record<string, string>> = {
    date: '2026-05-01',
    time: '17:30',
    timetz: '17:30+02',
  }
  return new InvalidInputError(
    field,
    `must not be a Date: give a text such as '${texts[base ?? ''] ?? '2026-05-01 17:30'}'. A Date is a moment, and which day and hour that is depends on the time zone`,
  )
}

/** JavaScript and PostgreSQL write years after 9999 and before 1 differently. */
export function writeDate(value: Date): string {
  const year = value.getUTCFullYear()
  const [, rest = ''] = value.toISOString().match(/^[+-]?\d+(-.*)$/) ?? []
  const text = `${`${year > 0 ? year : 1 - year}`.padStart(4, '0')}${rest}`
  return year > 0 ? text : `${text} BC`
}

function isTime(text: string, base: string | undefined): boolean {
  const [day = '', year, month, date] = DAY.exec(text) ?? []
  const at = new Date(Date.UTC(2000, Number(month) - 1, Number(date)))
  at.setUTCFullYear(Number(year), Number(month) - 1, Number(date))
  const isDay =
    year !== undefined &&
    Number(year) > 0 &&
    at.getUTCMonth() === Number(month) - 1 &&
    at.getUTCDate() === Number(date)
  if (!isDay) return false
  const rest = text.slice(day.length)
  if (rest === '') return true
  if (base === 'date' || !/^[ T]/.test(rest)) return false
  return TIME.test(rest.slice(1).replace(ZONE, ''))
}

function readText(field: string, value: unknown, { maxLength }: ColumnType): string {
  if (typeof value !== 'string') throw refuse(field, 'a text', value)
  checkCharacters(field, value)
  if (maxLength !== undefined && value.length > maxLength && [...value].length > maxLength)
    throw refuseValue(field, `must be at most ${maxLength} characters long, and has ${[...value].length}`)
  return value
}

/** The server would truncate a longer value, and find the row of the truncated one. */
function checkBytes(field: string, text: string, most: number): string {
  const bytes = Buffer.byteLength(text)
  if (bytes <= most) return text
  throw refuseValue(field, `must be at most ${most} ${most === 1 ? 'byte' : 'bytes'} long, and has ${bytes}`)
}

function checkLabel(field: string, labels: readonly string[], value: unknown): string {
  if (typeof value === 'string' && labels.includes(value)) return value
  throw refuse(field, `one of ${labels.join(', ')}`, value)
}

function readOther(field: string, value: unknown, { base }: ColumnType): string {
  if (value instanceof Date && (base === 'time' || base === 'timetz')) throw refuseMoment(field, base)
  if (value instanceof Date && !Number.isNaN(value.getTime())) return value.toISOString()
  if (!['string', 'number', 'bigint', 'boolean'].includes(typeof value)) throw refuse(field, 'a text', value)
  const text = `${value}`
  checkCharacters(field, text)
  return text
}

/** Nested arrays are dimensions. `none` stands for null. */
export function toArrayText(field: string, element: ColumnType, value: unknown, none = 'null'): string {
  if (!Array.isArray(value)) throw refuse(field, 'an array', value)
  const items = value.map((item, n) => {
    const at = `${field}[${n}]`
    if (Array.isArray(item) && element.base !== 'json' && element.base !== 'jsonb')
      return toArrayText(at, element, item, none)
    const text = toColumnText(at, element, item)
    return text === null ? none : quoteItem(text)
  })
  return `{${items.join(',')}}`
}

function quoteItem(text: string): string {
  return `"${text.replaceAll('\\', '\\\\').replaceAll('"', '\\"')}"`
}
