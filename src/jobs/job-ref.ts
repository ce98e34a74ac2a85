import { InvalidInputError } from '../errors.js'
import { showGiven } from '../options/name-given.js'
import { refuseValue } from '../options/refuse-value.js'
import type { Database } from '../postgres/database.js'
import { readJobNames } from './inspection-queries.js'
import type { JobDefinitions, JobOutcome, ResolvedDefinition } from './job-definition.js'

/**
 * A reference to one job, typed by its name and its result. It is a plain object: store it as JSON, and pass it to `result`,
 * `get`, `cancel`, `history`, `redrive` or `discard` later.
 *
 * @example
 * const ref = await jobs.add('email', { to: 'ann@example.org' })
 * const { messageId } = await jobs.result(ref, { waitMs: 10_000 })
 */
export interface JobRef<N extends string = string, R = unknown> {
  readonly id: string
  readonly name: N
  /** True if `add` created the job. */
  readonly created: boolean
  /** The type of the result. It exists at compile time only. */
  readonly '~result'?: R | undefined
}

/** A reference to any job of these names. */
export type JobRefOf<D extends JobDefinitions, N extends keyof D & string = keyof D & string> = {
  readonly [K in N]: JobRef<K, JobOutcome<D[K]>>
}[N]

/** A job of one of these names: its reference, or its id. */
export type JobTarget<D extends JobDefinitions, N extends keyof D & string = keyof D & string> =
  | string
  | JobRef<N, JobOutcome<D[N]>>

/** A target after its checks. `name` is undefined if the target was an id. */
export interface ResolvedTarget {
  readonly id: string
  readonly name: string | undefined
}

export function resolveTarget(
  target: unknown,
  definitions: ReadonlyMap<string, ResolvedDefinition>,
): ResolvedTarget {
  if (!isRef(target)) return { id: checkId(target), name: undefined }
  const { id, name } = readRef(target)
  if (typeof name !== 'string' || !definitions.has(name)) throw unknownName(name, definitions.keys())
  return { id: checkId(id), name }
}

/** True for a reference, even if it is malformed. A filter of jobs has no `id`. */
export const isRef = (target: unknown): target is object =>
  typeof target === 'object' && target !== null && readRef(target).id !== undefined

function readRef(target: object): { readonly id?: unknown; readonly name?: unknown } {
  try {
    const { id, name } = target as { readonly id?: unknown; readonly name?: unknown }
    return { id, name }
  } catch {
    return {} // A proxy or a getter that throws.
  }
}

function checkId(id: unknown): string {
  if (typeof id === 'string' && /^[1-9]\d{0,15}$/.test(id)) return id
  throw refuseValue(
    'id',
    `must be the id of a job, or the reference that \`add\` returned, not ${showGiven(id)}`,
  )
}

export const unknownName = (name: unknown, names: Iterable<string>): InvalidInputError =>
  new InvalidInputError(
    'name',
    `must be the name of a job that is defined here (${[...names].join(', ')}), not ${showGiven(name)}`,
  )

/** Refuses a reference whose name is not that of the job with its id. A reference from another database may be like that. */
export function assertNamed({ id, name }: ResolvedTarget, actual: string): void {
  if (name === undefined || name === actual) return
  throw refuseValue(
    'name',
    `of the reference is ${showGiven(name)}, but job ${id} is ${showGiven(actual)}. Pass the reference that \`add\` returned for this job`,
  )
}

/** Refuses references whose names are not those of their jobs. The name of a job never changes, so a separate statement can check it. */
export async function assertAllNamed(database: Database, targets: readonly ResolvedTarget[]): Promise<void> {
  const refs = new Map(targets.filter(({ name }) => name !== undefined).map((target) => [target.id, target]))
  if (refs.size === 0) return
  for (const { id, name } of await database.send(readJobNames, [`{${[...refs.keys()].join(',')}}`]))
    assertNamed(refs.get(`${id}`) as ResolvedTarget, `${name}`)
}
