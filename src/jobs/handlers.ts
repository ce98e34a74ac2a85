import { InvalidInputError } from '../errors.js'
import { checkFunction } from '../options/check-function.js'
import { nameGiven } from '../options/name-given.js'
import { offerNames } from '../options/nearest-name.js'
import type { JobContext, TransactionalContext } from './job-context.js'
import type { JobDefinitions, JobInput, JobResult, ResolvedDefinition } from './job-definition.js'

/** The function that runs the jobs of one name. */
export type JobHandler<D> = (
  input: JobInput<D>,
  ctx: D extends { readonly transactional: true } ? TransactionalContext : JobContext,
) => Promise<JobResult<D>> | JobResult<D>

/** Handlers by name. A worker takes only jobs that it has a handler for. */
export type JobHandlers<D extends JobDefinitions> = { readonly [N in keyof D]?: JobHandler<D[N]> }

/** A handler with any input and any result. */
export type AnyHandler = (input: unknown, ctx: JobContext) => unknown

/** One kind of job with its handler, for `dibs.work`. */
export interface HandledJob {
  readonly definition: ResolvedDefinition
  readonly handler: AnyHandler
}

/** The return value of `jobs.handle`, for `dibs.work`. */
export interface Handled {
  /** The schema that holds the jobs. */
  readonly schema: string
  readonly handled: readonly HandledJob[]
}

export function readHandlers(
  schema: string,
  definitions: ReadonlyMap<string, ResolvedDefinition>,
  handlers: Readonly<Record<string, unknown>>,
): Handled {
  if (typeof handlers !== 'object' || handlers === null)
    throw new InvalidInputError('handlers', `must be an object of functions, not ${nameGiven(handlers)}`)
  const handled = Object.entries(handlers).map(([name, handler]) => {
    const definition = definitions.get(name)
    if (!definition)
      throw new InvalidInputError(
        'handlers',
        `has a function for "${name}", and there is no such job. ${offerNames(name, [...definitions.keys()])}`,
      )
    checkFunction(`handlers.${name}`, handler)
    return { definition, handler: handler as AnyHandler }
  })
  if (handled.length === 0)
    throw new InvalidInputError('handlers', 'must have a function for one job at least')
  return { schema, handled }
}
