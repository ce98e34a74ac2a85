import type { StepResult } from '../gate/result.js'

/** The effect of a statement. */
export type StatementEffect =
  | { readonly kind: 'done'; readonly result: StepResult }
  /** The instance was killed or paused before the statement was sent. */
  | { readonly kind: 'not sent' }
  /** The server executed the statement, and its response did not arrive. */
  | { readonly kind: 'unseen'; readonly result: StepResult }
  /** The loop made the statement fail. */
  | { readonly kind: 'injected'; readonly code: string; readonly message: string }
  /** The statement still waited for a lock at the end. */
  | { readonly kind: 'waits'; readonly for: readonly string[] }
  /** The connection of the statement was lost. */
  | { readonly kind: 'lost' }

/** A statement of an instance. */
export interface StatementLine {
  readonly kind: 'statement'
  /** `run`, `recovery 2`; a second connection is `run/2`. */
  readonly who: string
  /** The number of the statement in its instance, from 1. */
  readonly number: number
  readonly text: string
  readonly values: readonly (string | null)[]
  /** The statement is a COMMIT, or an autocommit statement that may write. */
  readonly commits: boolean
  readonly rollsBack: boolean
  effect: StatementEffect
  /** The instances that the statement waited for before its effect. */
  waitedFor?: readonly string[] | undefined
}

/** Another event of a run. */
export interface EventLine {
  readonly kind: 'event'
  readonly text: string
  /** The instance that the event has ended. */
  readonly ends?: string
  /** The event is the fault. */
  readonly isFault?: true
}

export type StoryLine = StatementLine | EventLine

/** The statements and events of one run, in order. */
export class Story {
  readonly lines: StoryLine[] = []

  addEvent(text: string): void {
    this.lines.push({ kind: 'event', text })
  }

  /** Adds that an instance has failed or died. */
  addEnd(who: string, how: string): void {
    this.lines.push({ kind: 'event', text: `${who} ${how}`, ends: who })
  }

  addFault(text: string): void {
    this.lines.push({ kind: 'event', text, isFault: true })
  }
}

/** The statements of `run`, on all of its connections. */
export const statementsOfRun = (story: readonly StoryLine[]): readonly StatementLine[] =>
  story.filter((line): line is StatementLine => line.kind === 'statement' && line.who.startsWith('run'))
