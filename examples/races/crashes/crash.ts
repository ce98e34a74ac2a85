import type { CrashLoopOptions } from 'dibs/testing'
import type { Pattern, PatternVariant } from '../pattern.js'

/** One way to write a thing, and what the crash loop must say of it. */
export interface Variant extends PatternVariant, Pick<CrashLoopOptions, 'run' | 'modes' | 'errors'> {
  /** The first point at which it fails, as its replay string; null: at none. */
  readonly failsAt: string | null
}

/** A pattern that does not hold when its process ends, or fails, or comes back late. */
export interface Crash
  extends Pattern<Variant>,
    Pick<
      CrashLoopOptions,
      'setup' | 'advance' | 'progress' | 'invariant' | 'effects' | 'mayWait' | 'bound'
    > {}

/** What the crash loop is given, but for the database. */
export function optionsOf(
  { setup, advance, progress, invariant, effects, mayWait, bound }: Crash,
  { run, modes, errors }: Variant,
): CrashLoopOptions {
  return { setup, advance, progress, invariant, effects, mayWait, bound, run, modes, errors, throws: false }
}

/** A clock that stands still unless it is moved, for leases that run out when we say so. */
export const clockTable = 'create table clock (now int not null)'
