import { ExplorationError } from '../../../errors.js'
import type { ActorPool } from '../../gate/actor-pool.js'
import type { ExploreOptions } from '../options.js'
import type { Trace } from '../schedule/trace.js'
import type { TestSession } from '../session/test-session.js'

/** The reason why the outcome of a schedule is wrong. */
export interface Failure {
  readonly name: string
  readonly message: string
  readonly cause?: unknown
}

/** A schedule whose outcome is wrong. */
export interface FailedSchedule {
  readonly trace: Trace
  readonly failure: Failure
  /** The step at which it departs from a schedule that did not fail. */
  readonly turnedAt?: number | undefined
}

const READ_ONLY = '25006'

/** Finds out whether the outcome of a schedule is wrong. Undefined if it is right. */
export async function findFailure(
  trace: Trace,
  testSession: TestSession,
  options: ExploreOptions,
): Promise<Failure | undefined> {
  const { invariant, mayFail } = options
  if (trace.stuck) return { name: 'Stuck', message: `Nobody can go on:\n${trace.stuck}` }
  for (const [actor, outcome] of Object.entries(trace.outcomes)) {
    if (outcome.status === 'fulfilled' || mayFail?.(outcome.reason, actor)) continue // guard: explorer.actor-failure
    const { name, message } = describeError(outcome.reason)
    return { name, message: `${actor} failed: ${message}`, cause: outcome.reason }
  }
  const [open] = testSession.actorSet.withOpenTransaction
  if (open) return { name: 'OpenTransaction', message: `${open} has ended and left its transaction open.` }
  return invariant && findViolation(testSession, (db) => invariant(db, trace.outcomes))
}

/** Runs an invariant. Returns the violation that it finds. */
export async function findViolation(
  testSession: TestSession,
  invariant: (db: ActorPool) => unknown,
): Promise<Failure | undefined> {
  try {
    const held = await testSession.runReadOnly(invariant)
    return held === false ? { name: 'Invariant', message: 'The invariant returned false.' } : undefined
  } catch (error) {
    if (error instanceof ExplorationError) throw error
    if (isReadOnlyViolation(error))
      throw new ExplorationError(
        `The invariant tried to change data: ${describeError(error).message}. It may only read; writes belong into the code under test, or into \`setup\`.`,
        'invariant',
        undefined,
        { cause: error },
      )
    return { ...describeError(error), cause: error }
  }
}

/** True for the error of a write in a read-only transaction. */
export const isReadOnlyViolation = (error: unknown): boolean =>
  (error as { code?: unknown } | null)?.code === READ_ONLY

export function describeError(error: unknown): { name: string; message: string } {
  if (error instanceof Error) {
    const { code } = error as { code?: unknown }
    // `pg` names all errors of the server "error".
    const name = error.name === 'error' && typeof code === 'string' ? `error ${code}` : error.name
    return { name, message: error.message }
  }
  return { name: 'Error', message: String(error) }
}
