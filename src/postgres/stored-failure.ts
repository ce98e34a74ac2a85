import { BusinessRuleError, PermanentError, TransientError } from '../errors.js'
import { toJson } from './json.js'

/** A terminal error as it is kept, to be told to later callers. */
export interface StoredFailure {
  readonly name: string
  readonly message: string
  readonly code?: string
  readonly status?: number
  readonly isRule?: true
  /** Its thrower says that it will never work. */
  readonly isPermanent?: true
  /** The stack of a dead job's error, with its causes. */
  readonly stack?: string
  /** What else the error carries. */
  readonly fields?: Readonly<Record<string, unknown>>
}

/** The most of a message that is kept, and of the fields as JSON. */
const MAX_LENGTH = 4_000

/** The most of a stack that is kept: of the message in it, and in all. */
const MAX_HEAD = 500
const MAX_STACK = 4_000
const MAX_CAUSES = 3

/** Of every error of ours, made anew by its class; or not to be shown. */
const OWN = new Set(['name', 'message', 'stack', 'cause', 'code', 'status', 'retryable', 'replayed'])

/** Marked by its class, or by the caller's rule: running again would end the same way. A rule that fails says nothing. */
export function isTerminalError(error: unknown, rule: ((error: unknown) => boolean) | undefined): boolean {
  if (error instanceof PermanentError || error instanceof BusinessRuleError) return true
  try {
    return rule?.(error) === true
  } catch {
    return false
  }
}

/** An error as JSON; whatever was thrown, this does not fail. */
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

/** The stack of an error and of its causes, of bounded length; undefined if it has none. Does not fail. */
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

/** A long message must not take the place of the lines that say where it was thrown. */
function shorten(stack: string): string {
  const at = stack.search(/\n {4}at /)
  return at > MAX_HEAD ? stack.slice(0, MAX_HEAD) + stack.slice(at) : stack
}

/** Only if all of them can be kept: half of them would be something else. */
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

/** What PostgreSQL would not store in a text must not keep the failure from being stored. */
const clean = (text: unknown): string =>
  String(text)
    .slice(0, MAX_LENGTH)
    .replaceAll('\0', '')
    .replace(/\p{Surrogate}/gu, '')

/**
 * The same class to `instanceof` as for the first caller, with its message, status and fields; what was of another class is
 * named by `cause`.
 */
export const restoreFailure = (stored: unknown): PermanentError | BusinessRuleError =>
  restoreAs(stored, PermanentError)

/** The same for a failure that is not final, unless its thrower says so: the next attempt may well do better. */
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
