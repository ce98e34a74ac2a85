import type { StepResult } from '../gate/result.js'

/** What became of a statement. */
export type StatementEffect =
  | { readonly kind: 'done'; readonly result: StepResult }
  /** The instance was gone before it was sent, or stood still. */
  | { readonly kind: 'not sent' }
  /** The server executed it, and nobody heard of it. */
  | { readonly kind: 'unseen'; readonly result: StepResult }
  /** It failed by the loop's doing. */
  | { readonly kind: 'injected'; readonly code: string; readonly message: string }
  /** It waited for a lock, and nothing came of it. */
  | { readonly kind: 'waits'; readonly for: readonly string[] }
  /** Its connection was lost. */
  | { readonly kind: 'lost' }

/** A statement of an instance. */
export interface StatementLine {
  readonly kind: 'statement'
  /** `run`, `recovery 2`; a second connection is `run/2`. */
  readonly who: string
  /** In its instance, from 1. */
  readonly number: number
  readonly text: string
  readonly values: readonly (string | null)[]
  /** It commits what was written. */
  readonly commits: boolean
  readonly rollsBack: boolean
  effect: StatementEffect
  /** Whom it waited for before that. */
  waitedFor?: readonly string[] | undefined
}

/** Something else that happened. */
export interface EventLine {
  readonly kind: 'event'
  readonly text: string
  /** The instance that came to an end by it. */
  readonly ends?: string
  /** It is what was done to the instance. */
  readonly isFault?: true
}

export type StoryLine = StatementLine | EventLine

/** What happened in one run, in order. */
export class Story {
  readonly lines: StoryLine[] = []

  tell(text: string): void {
    this.lines.push({ kind: 'event', text })
  }

  /** How an instance ended that did not end well. */
  tellEnd(who: string, how: string): void {
    this.lines.push({ kind: 'event', text: `${who} ${how}`, ends: who })
  }

  tellFault(text: string): void {
    this.lines.push({ kind: 'event', text, isFault: true })
  }
}

/** The statements of `run`, on all of its connections. */
export const statementsOfRun = (story: readonly StoryLine[]): readonly StatementLine[] =>
  story.filter((line): line is StatementLine => line.kind === 'statement' && line.who.startsWith('run'))
