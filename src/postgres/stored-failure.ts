import { BusinessRuleError, PermanentError, TransientError } from '../errors.js'
import { toJson } from './json.js'

/** A terminal error as it is stored for later callers. */
export interface StoredFailure {
  readonly name: string
  readonly message: string
  readonly code?: string
  readonly status?: number
  readonly isRule?: true
  /** True if its thrower says that no retry can succeed. */
  readonly isPermanent?: true
  /** The stack of a dead job's error, with its causes. */
  readonly stack?: string
  /** The other fields of the error. */
  readonly fields?: Readonly<Record<string, unknown>>
}

/** The longest stored message, and the longest JSON of the fields. */
const MAX_LENGTH = 4_000

/** The longest stored stack: of the message in it, and in all. */
const MAX_HEAD = 500
const MAX_STACK = 4_000
const MAX_CAUSES = 3

/** Fields that the class sets again, or that are not shown. */
const OWN = new Set(['name', 'message', 'stack', 'cause', 'code', 'status', 'retryable', 'replayed'])

/**
 * True if another run would fail in the same way, by the class of the error or the caller's rule. A rule that throws
 * counts as false.
 */
export function isTerminalError(error: unknown, rule: ((error: unknown) => boolean) | undefined): boolean {
  if (error instanceof PermanentError || error instanceof BusinessRuleError) return true
  try {
    return rule?.(error) === true
  } catch {
    return false
  }
}

/** Writes any thrown value as JSON. Never throws. */
export function storeFailure(error: unknown, { withStack = false } = {}): string {
  try {
    const stack = withStack ? stackOf(error) : undefined
    return JSON.stringify({ ...describe(error), ...(stack ? { stack } : {}) })
  } catch {
    return '{"name":"Error","message":"An error that cannot be shown."}'
  }
}

function describe(error: unknown): StoredFailure {
  if (!(error instanceof Error)) return { name: 'Error', message: clean(error) }
  const { code, status } = error as { code?: unknown; status?: unknown }
  const name = error.name === 'Error' ? error.constructor.name : error.name
  const fields = fieldsOf(error)
  return {
    name: clean(name),
    message: clean(error.message),
    ...(typeof code === 'string' ? { code: clean(code) } : {}),
    ...(isErrorStatus(status) ? { status } : {}),
    ...(error instanceof BusinessRuleError ? { isRule: true } : {}),
    ...(error instanceof PermanentError ? { isPermanent: true } : {}),
    ...(fields ? { fields } : {}),
  }
}

/** The stack of an error and of its causes, of bounded length. Undefined if it has none. Never throws. */
export function stackOf(error: unknown): string | undefined {
  const parts: string[] = []
  try {
    for (let one = error; one instanceof Error && parts.length <= MAX_CAUSES; one = one.cause)
      if (typeof one.stack === 'string') parts.push(shorten(one.stack))
  } catch {
    // A thrown value may throw again when its properties are read.
  }
  return parts.length > 0 ? clean(parts.join('\nCaused by: ')).slice(0, MAX_STACK) : undefined
}

/** Shortens the message in a stack, so that the lines after it are kept. */
function shorten(stack: string): string {
  const at = stack.search(/\n {4}at /)
  return at > MAX_HEAD ? stack.slice(0, MAX_HEAD) + stack.slice(at) : stack
}

/** The other fields of an error. Undefined if not all of them can be stored. */
function fieldsOf(error: Error): Record<string, unknown> | undefined {
  const fields = Object.fromEntries(Object.entries(error).filter(([name]) => !OWN.has(name)))
  try {
    const text = toJson('fields', fields)
    return text === '{}' || text.length > MAX_LENGTH ? undefined : JSON.parse(text)
  } catch {
    return undefined
  }
}

const isErrorStatus = (status: unknown): status is number =>
  Number.isInteger(status) && Number(status) >= 400 && Number(status) <= 599

/** Removes the characters that PostgreSQL cannot store. */
const clean = (text: unknown): string =>
  String(text)
    .slice(0, MAX_LENGTH)
    .replaceAll('\0', '')
    .replace(/\p{Surrogate}/gu, '')

/** Makes an error of the same class as the first caller got, with its message, status and fields. `cause` names any other class. */
export const restoreFailure = (stored: unknown): PermanentError | BusinessRuleError =>
  restoreAs(stored, PermanentError)

/** Like `restoreFailure`, for a failure after which another attempt may succeed, unless the error was marked as permanent. */
export const restoreShared = (stored: unknown): PermanentError | BusinessRuleError | TransientError =>
  restoreAs(stored, (stored as StoredFailure | null)?.isPermanent ? PermanentError : TransientError)

function restoreAs<E extends PermanentError | TransientError>(
  stored: unknown,
  Plain: new (message: string, options?: { cause?: unknown }) => E,
): E | BusinessRuleError {
  const {
    name = 'Error',
    message = '',
    code,
    status,
    isRule,
    fields,
  } = (stored ?? {}) as Partial<StoredFailure>
  const cause = name === (isRule ? BusinessRuleError : Plain).name ? undefined : { name, message, code }
  const error = isRule ? new BusinessRuleError(message, undefined, { cause }) : new Plain(message, { cause })
  return Object.assign(error, fields, { replayed: true }, status === undefined ? {} : { status })
}
