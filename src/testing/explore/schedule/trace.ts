import type { Outcome } from '../../gate/actor.js'
import type { StepResult } from '../../gate/result.js'
import type { PendingStep } from './pending-step.js'

/** The effect of a step that was released. */
export type Effect =
  | { readonly kind: 'done'; readonly result: StepResult }
  /** The step waits for a lock. A later step of another unit releases the lock and completes this step. */
  | { readonly kind: 'waits'; readonly for: readonly string[]; readonly what?: string | undefined }
  /** A function has reached a yield point. */
  | { readonly kind: 'point'; readonly name: string }
  /** The connection is gone. */
  | { readonly kind: 'lost' }

/** One step of one schedule. */
export interface TraceStep {
  /** `alice`, or `alice/2` for her second connection. */
  readonly unit: string
  /** The statement, after the other statements of the step; or the yield point from which a function resumes. */
  readonly text: string
  /** The statement alone. */
  readonly statement: string
  /** Settings that were sent before it and that a printout leaves out. */
  readonly settings: readonly string[]
  readonly values: readonly (string | null)[]
  readonly effect: Effect
  /** Units whose wait ended or changed because of this step, with the effects of their own steps. */
  readonly resumed: readonly { readonly unit: string; readonly effect: Effect }[]
  /** How many units waited for this one before the step, directly or through other waiting units. */
  readonly waiters: number
  /** The units that could have been chosen here. */
  readonly options: readonly string[]
  /** A unit that was left out of the options, because it repeats the same statements without effect. */
  readonly loops?: string | undefined
  /** Actors that wait for a connection of a full pool after this step. */
  readonly poolWaits: Readonly<Record<string, string>>
}

/** Facts about a step that the search needs and a report does not show. */
export interface StepContext {
  /** By the unit: the step that it would have taken, for each of the options. */
  readonly pending: ReadonlyMap<string, PendingStep>
  /** The units whose transactions are open after the step. */
  readonly openUnits: ReadonlySet<string>
}

export interface Trace {
  readonly steps: readonly TraceStep[]
  /** One context for each step. */
  readonly contexts: readonly StepContext[]
  readonly outcomes: Readonly<Record<string, Outcome>>
  /** Which units wait for what, if no unit can take a step and some actor has not ended. */
  readonly stuck?: string | undefined
}

/** The text of the step in which PostgreSQL commits a statement outside a transaction. */
export const IMPLICIT_COMMIT = 'commit (implicit)'

/** The name of the actor that a unit belongs to. */
export const actorOf = (unit: string): string => unit.replace(/\/\d+$/, '')

function effectSignature(effect: Effect): string {
  switch (effect.kind) {
    case 'done': {
      const { tag, error } = effect.result
      return error ? `error ${error.code}` : tag
    }
    case 'waits':
      return `waits for ${effect.for.join(', ')}`
    case 'point':
      return `at ${effect.name}`
    case 'lost':
      return 'connection lost'
  }
}

const TIMEOUT = /\bset local statement_timeout = \d+/i

/** A text of the unit, the statement and the effects of a step. Equal in every run of the same schedule. */
export function stepSignature({ unit, statement, effect, resumed }: TraceStep): string {
  const others = resumed.map((other) => `${other.unit} ${effectSignature(other.effect)}`).toSorted()
  // The signature leaves out the other statements of the step, and a SET LOCAL with a timeout, which may be a remaining time.
  return [`${unit}: ${statement.replace(TIMEOUT, '')}`, effectSignature(effect), ...others].join(' | ')
}

/**
 * True if several units waited for this one and the step released some of them, so that the server chose which went first.
 * The queue for a row lock does not fix that order. Its first backend leaves the queue before it has locked the new version
 * of the row, so another may overtake. If all units were released with the same effect, the other order would look the same.
 */
export function isServerOrdered({ resumed, waiters }: TraceStep): boolean {
  if (waiters < 2 || resumed.length === 0) return false
  const effects = new Set(resumed.map(({ effect }) => effectSignature(effect)))
  return resumed.length < waiters || effects.size > 1
}

/**
 * The unit that is chosen by default: the unit of the last step, or else the first option. Another choice is a preemption if
 * the last unit was among the options.
 */
export function defaultChoice(options: readonly string[], last: string | undefined): string {
  if (last !== undefined && options.includes(last)) return last
  return options[0] as string
}

export const isPreemption = (options: readonly string[], last: string | undefined, choice: string): boolean =>
  last !== undefined && choice !== last && options.includes(last)

/** The number of preemptions in a schedule. */
export function countPreemptions(steps: readonly TraceStep[]): number {
  return steps.filter((step, i) => isPreemption(step.options, steps[i - 1]?.unit, step.unit)).length
}

/** How often the unit changed, by preemption or because the unit before could not take a step. */
export function countSwitches(steps: readonly TraceStep[]): number {
  return steps.filter((step, i) => i > 0 && step.unit !== steps[i - 1]?.unit).length
}
