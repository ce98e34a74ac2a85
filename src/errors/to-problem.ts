import { AcquireRefusedError } from './acquire-errors.js'
import { InvalidInputError } from './caller-errors.js'
import { DibsError } from './dibs-error.js'
import { PROBLEM_BASE, retryAfterSeconds, sharedProblems } from './problem-types.js'
import { type View, views } from './problem-views.js'

/** The body of a problem as RFC 9457 defines it. JSON: dates are ISO strings. */
export interface ProblemBody {
  /** A stable identifier. Compare this or `code`, not the title. */
  readonly type: string
  readonly title: string
  readonly status: number
  readonly detail: string
  /** The `code` of the error. Missing in a 500. */
  readonly code?: string
  /** True if the same request, sent again, can succeed. */
  readonly retryable: boolean
  /** How many milliseconds to wait before the next try. The header `retry-after` has it in whole seconds. */
  readonly retryAfterMs?: number
  /** When the limit or the quota resets. */
  readonly resetsAt?: string
  /** Details of the error that a client may see, such as `limit` or `remaining`. */
  readonly [detail: string]: unknown
}

/** A problem in parts that any framework can send. */
export interface ProblemResponse {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: ProblemBody
}

/** ORMs wrap errors, sometimes several times. */
const MAX_LAYERS = 8

/** Finds the outermost error of Dibs among an error and its causes. */
function findDibsError(error: unknown): DibsError | undefined {
  let layer = error
  for (let depth = 0; depth < MAX_LAYERS && typeof layer === 'object' && layer !== null; depth++) {
    if (layer instanceof DibsError) return layer
    layer = (layer as { readonly cause?: unknown }).cause
  }
  return undefined
}

/** Returns the view of the error's class, or of its nearest base class that has one. */
function viewOf(error: DibsError): View<DibsError> | undefined {
  let type = Object.getPrototypeOf(error)
  while (type && !views.has(type.constructor)) type = Object.getPrototypeOf(type)
  return views.get(type?.constructor)
}

/** Makes a 500 that reveals nothing about the error. The log has the reason. */
const describeFailure = (): ProblemBody => ({
  type: `${PROBLEM_BASE}${sharedProblems.failed.type}`,
  title: sharedProblems.failed.title,
  status: 500,
  detail: 'The request may have been carried out. The log of the service has the reason.',
  retryable: false,
})

const isShown = ({ status }: DibsError): boolean =>
  Number.isInteger(status) && status >= 400 && status <= 599 && status !== 500

function describe(error: DibsError): ProblemBody {
  if (!isShown(error)) return describeFailure()
  const { code, status } = error
  const view = viewOf(error)
  const retryable = view?.retryable ?? error.retryable
  const retryAfterMs = view?.retryAfterMs?.(error) ?? error.retryAfterMs
  const detail = typeof view?.detail === 'function' ? view.detail(error) : view?.detail
  return {
    ...nameProblem(error, view),
    status,
    detail: detail ?? 'The log of the service has the reason.',
    code,
    retryable,
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
    ...pickShown(error, ['resetsAt', ...(view?.shows ?? [])]),
    ...(error instanceof AcquireRefusedError ? { failures: describeFailures(error) } : {}),
  }
}

function nameProblem(error: DibsError, view: View<DibsError> | undefined): { type: string; title: string } {
  const isHeader = error instanceof InvalidInputError && /^If-(?:None-)?Match$/.test(error.field)
  const { type, title } = (isHeader ? sharedProblems.preconditionInvalid : view?.like) ?? {
    type: error.code
      .replace(/^DIBS_/, '')
      .toLowerCase()
      .replaceAll('_', '-'),
    title: view?.title ?? 'The request was refused',
  }
  return { type: `${PROBLEM_BASE}${type}`, title }
}

const describeFailures = ({ failures }: AcquireRefusedError): object[] =>
  failures.map(({ index, kind, error }) => ({ index, kind, ...describe(error) }))

/** Copies the shown fields as JSON. Dates become strings, also inside a slot. */
function pickShown(error: DibsError, names: readonly string[]): Record<string, unknown> {
  const shown = names.map((name) => [name, Reflect.get(error, name)] as const)
  const known = shown.filter(([, value]) => value !== undefined && value !== null)
  return JSON.parse(JSON.stringify(Object.fromEntries(known)))
}

/**
 * Turns any error into a problem of RFC 9457, for a framework without a middleware of Dibs. `toProblem` also finds an error of Dibs that a library wrapped as
 * `cause`. Any other error, and an error of Dibs with status 500, becomes a 500 that reveals nothing about the error, so log the error.
 *
 * @example
 * const { status, headers, body } = toProblem(error)
 * response.writeHead(status, headers).end(JSON.stringify(body))
 */
export function toProblem(error: unknown): ProblemResponse {
  const found = findDibsError(error)
  const body = found ? describe(found) : describeFailure()
  return {
    status: body.status,
    headers: {
      'content-type': 'application/problem+json',
      'cache-control': 'no-store',
      ...(body.retryAfterMs === undefined ? {} : { 'retry-after': retryAfterSeconds(body.retryAfterMs) }),
      ...(found && isShown(found) ? viewOf(found)?.headers?.(found) : {}),
    },
    body,
  }
}
