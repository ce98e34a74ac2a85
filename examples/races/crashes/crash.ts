import type { CrashLoopOptions } from 'dibs/testing'

/** One way to write a thing, and what the crash loop must say of it. */
export interface Variant {
  /** Its code stands in the same file between `// #region <name>` and `// #endregion`. */
  readonly name: string
  /** Its heading, where that is not the name. */
  readonly title?: string
  /** What to say of it, where it is neither the first, which has the fault, nor the last, which has the remedy. Markdown. */
  readonly text?: string
  /** The first point at which it fails, as its replay string; null: at none. */
  readonly failsAt: string | null
  readonly run: CrashLoopOptions['run']
  /** Where not all of them are to be tried. */
  readonly modes?: CrashLoopOptions['modes']
  readonly errors?: CrashLoopOptions['errors']
}

/**
 * A pattern that is recommended somewhere and does not survive, beside one that does. Code that several variants use
 * stands between `// #region shared` and `// #endregion`.
 */
export interface Crash
  extends Pick<CrashLoopOptions, 'advance' | 'progress' | 'invariant' | 'effects' | 'mayWait' | 'bound'> {
  /** What is recommended, for the heading: a noun phrase. Markdown. */
  readonly title: string
  /** What goes wrong, for the table of contents. Markdown. */
  readonly line: string
  /** What is recommended, in which kind of text, and what it promises. Markdown. */
  readonly claim: string
  /** What really happens, and where the process must end for it. Markdown. */
  readonly fault: string
  /** Why the right version holds. Markdown. */
  readonly remedy: string
  readonly tables: string
  readonly setup?: CrashLoopOptions['setup']
  /** In the order of the page; mostly `wrong`, then `right`. */
  readonly variants: readonly Variant[]
}

/** A clock that stands still unless it is moved, for leases that run out when we say so. */
export const clockTable = 'create table clock (now int not null)'
