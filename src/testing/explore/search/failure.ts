import { ExplorationError } from '../../../errors.js'
import type { ActorPool } from '../../gate/actor-pool.js'
import type { ExploreOptions } from '../options.js'
import type { Trace } from '../schedule/trace.js'
import type { Stage } from '../stage/stage.js'

/** What is wrong with a schedule. */
export interface Failure {
  readonly name: string
  readonly message: string
  readonly cause?: unknown
}

/** A schedule that went wrong. */
export interface Failed {
  readonly trace: Trace
  readonly failure: Failure
  /** The step at which it left a schedule that was right. */
  readonly turnedAt?: number | undefined
}

const READ_ONLY = '25006'

/** Judges a schedule that has run. */
export async function failureOf(
  trace: Trace,
  stage: Stage,
  options: ExploreOptions,
): Promise<Failure | undefined> {
  const { invariant, mayFail } = options
  if (trace.stuck) return { name: 'Stuck', message: `Nobody can go on:\n${trace.stuck}` }
  for (const [actor, outcome] of Object.entries(trace.outcomes)) {
    if (outcome.status === 'fulfilled' || mayFail?.(outcome.reason, actor)) continue
    const { name, message } = errorOf(outcome.reason)
    return { name, message: `${actor} failed: ${message}`, cause: outcome.reason }
  }
  const [open] = stage.cast.withOpenTransaction
  if (open) return { name: 'OpenTransaction', message: `${open} has ended and left its transaction open.` }
  return invariant && violationOf(stage, (db) => invariant(db, trace.outcomes))
}

/** What an invariant finds wrong. */
export async function violationOf(
  stage: Stage,
  invariant: (db: ActorPool) => unknown,
): Promise<Failure | undefined> {
  try {
    const held = await stage.judge(invariant)
    return held === false ? { name: 'Invariant', message: 'The invariant returned false.' } : undefined
  } catch (error) {
    if (error instanceof ExplorationError) throw error
    if (isWrite(error))
      throw new ExplorationError(
        `The invariant tried to change data: ${errorOf(error).message}. It may only look; writes belong into what is tested, or into \`setup\`.`,
        'invariant',
        undefined,
        { cause: error },
      )
    return { ...errorOf(error), cause: error }
  }
}

/** Whoever may only look has tried to write. */
export const isWrite = (error: unknown): boolean => (error as { code?: unknown } | null)?.code === READ_ONLY

export function errorOf(error: unknown): { name: string; message: string } {
  if (error instanceof Error) {
    const { code } = error as { code?: unknown }
    // `pg` calls all of them "error".
    const name = error.name === 'error' && typeof code === 'string' ? `error ${code}` : error.name
    return { name, message: error.message }
  }
  return { name: 'Error', message: String(error) }
}
