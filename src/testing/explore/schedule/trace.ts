import type { Outcome } from '../../gate/actor.js'
import type { StepResult } from '../../gate/result.js'
import type { PendingStep } from './pending-step.js'

/** What became of a statement that was let go. */
export type Effect =
  | { readonly kind: 'done'; readonly result: StepResult }
  /** It waits for a lock; it is done in a later step, by whoever frees it. */
  | { readonly kind: 'waits'; readonly for: readonly string[]; readonly what?: string | undefined }
  /** A function has come to a yield point. */
  | { readonly kind: 'point'; readonly name: string }
  /** The connection is gone. */
  | { readonly kind: 'lost' }

/** One step of one schedule. */
export interface TraceStep {
  /** `alice`, or `alice/2` for her second connection. */
  readonly unit: string
  /** The statement, with what was one with it; or where a function goes on. */
  readonly text: string
  /** The statement alone. */
  readonly statement: string
  /** Settings that went before it and are not worth a place in its line. */
  readonly settings: readonly string[]
  readonly values: readonly (string | null)[]
  readonly effect: Effect
  /** Those who had waited and could go on because of this step, with what became of them. */
  readonly resumed: readonly { readonly unit: string; readonly effect: Effect }[]
  /** How many waited for this one before the step, directly or behind each other. */
  readonly waiters: number
  /** Those who could have been chosen here. */
  readonly options: readonly string[]
  /** One who could have, and was left out because it only asks the same again and again. */
  readonly loops?: string | undefined
  /** Actors that wait for a connection of a full pool after this step. */
  readonly poolWaits: Readonly<Record<string, string>>
}

/** What is known of a step that a report does not need. */
export interface Moment {
  /** What each who could have been chosen would have done. */
  readonly pending: ReadonlyMap<string, PendingStep>
  /** Those whose transactions are open after the step, with all they hold. */
  readonly open: ReadonlySet<string>
}

export interface Trace {
  readonly steps: readonly TraceStep[]
  /** One for each step. */
  readonly moments: readonly Moment[]
  readonly outcomes: Readonly<Record<string, Outcome>>
  /** The schedule cannot go on: who waits, and for what. */
  readonly stuck?: string | undefined
}

/** The statement of the step in which PostgreSQL commits what was no transaction. */
export const IMPLICIT_COMMIT = 'commit (implicit)'

/** The name of the actor that a unit belongs to. */
export const actorOf = (unit: string): string => unit.replace(/\/\d+$/, '')

function signEffect(effect: Effect): string {
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

/** What a step did, in words that are the same in every run of the same schedule. */
export function signStep({ unit, statement, effect, resumed }: TraceStep): string {
  const others = resumed.map((other) => `${other.unit} ${signEffect(other.effect)}`).toSorted()
  // Not what was one with it, nor a SET LOCAL in the same message: it may carry what is left of some time.
  return [`${unit}: ${statement.replace(TIMEOUT, '')}`, signEffect(effect), ...others].join(' | ')
}

/**
 * Several waited for this one, and it let some of them go: the server decides in which order. Also where they stood in
 * line for a row: the first in line leaves its place before it has locked the row's new version, and may be overtaken.
 * Where the same became of all of them, the other order would have looked the same.
 */
export function isContested({ resumed, waiters }: TraceStep): boolean {
  if (waiters < 2 || resumed.length === 0) return false
  const effects = new Set(resumed.map(({ effect }) => signEffect(effect)))
  return resumed.length < waiters || effects.size > 1
}

/**
 * Who goes on if nobody interferes: the one that ran last, else the first who can. Leaving this path while the last one
 * could have gone on is a preemption.
 */
export function easyChoice(options: readonly string[], last: string | undefined): string {
  if (last !== undefined && options.includes(last)) return last
  return options[0] as string
}

export const isPreemption = (options: readonly string[], last: string | undefined, choice: string): boolean =>
  last !== undefined && choice !== last && options.includes(last)

/** Times an actor was left though it could have gone on. */
export function countPreemptions(steps: readonly TraceStep[]): number {
  return steps.filter((step, i) => isPreemption(step.options, steps[i - 1]?.unit, step.unit)).length
}

/** Times the actor changed, for whatever reason. */
export function countSwitches(steps: readonly TraceStep[]): number {
  return steps.filter((step, i) => i > 0 && step.unit !== steps[i - 1]?.unit).length
}
