import { BusinessRuleError, PermanentError } from '../errors.js'

/** A terminal error as it is kept, to be told to later callers. */
interface StoredFailure {
  readonly name: string
  readonly message: string
  /** Of a `BusinessRuleError`. */
  readonly rule?: string
  readonly isRule?: true
  readonly code?: string
}

/** The most of a message that is kept. */
const MAX_MESSAGE = 4_000

/** Marked by its class, or by the caller's rule: running again would end the same way. */
export function isTerminalError(error: unknown, rule: ((error: unknown) => boolean) | undefined): boolean {
  return error instanceof PermanentError || error instanceof BusinessRuleError || rule?.(error) === true
}

export function storeFailure(error: unknown): string {
  const { name, message, code } =
    error instanceof Error ? (error as Error & { code?: unknown }) : foreign(error)
  const failure: StoredFailure = {
    name: clean(name),
    message: clean(message),
    ...(typeof code === 'string' ? { code: clean(code) } : {}),
    ...(error instanceof BusinessRuleError ? { isRule: true } : {}),
    ...(error instanceof BusinessRuleError && error.rule !== undefined ? { rule: clean(error.rule) } : {}),
  }
  return JSON.stringify(failure)
}

const foreign = (thrown: unknown) => ({ name: 'Error', message: String(thrown), code: undefined })

/** What PostgreSQL would not store in a text must not keep the failure from being stored. */
const clean = (text: string): string =>
  text
    .slice(0, MAX_MESSAGE)
    .replaceAll('\0', '')
    .replace(/\p{Surrogate}/gu, '')

/** The same class to `instanceof` as for the first caller, unless it was one of the caller's own: then `cause` names it. */
export function restoreFailure(outcome: string): PermanentError | BusinessRuleError {
  const { name, message, rule, isRule, code }: StoredFailure = JSON.parse(outcome)
  const cause =
    name === 'PermanentError' || name === 'BusinessRuleError' ? undefined : { name, message, code }
  return isRule ? new BusinessRuleError(message, rule, { cause }) : new PermanentError(message, { cause })
}
