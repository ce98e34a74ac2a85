import type { ExploreHandle, ExploreOptions } from 'dibs/testing'

/** One way to write a thing, and what the explorer must say of it. */
export interface Variant {
  /** Its code stands in the same file between `// #region <name>` and `// #endregion`. */
  readonly name: string
  /** Its heading, where that is not the name. */
  readonly title?: string
  /** What to say of it, where it is neither the first, which has the fault, nor the last, which has the remedy. Markdown. */
  readonly text?: string
  readonly verdict: 'race' | 'passed'
  /** Goes wrong with nobody in between: a mistake that no lock would have prevented. */
  readonly isSerial?: true
  readonly actors: ExploreOptions['actors']
  /** Where it needs another start than the rest. */
  readonly setup?: (db: ExploreHandle) => unknown
  /** Where it must hold something else than the rest. */
  readonly invariant?: ExploreOptions['invariant']
  readonly isolation?: ExploreOptions['isolation']
  readonly mayFail?: ExploreOptions['mayFail']
}

/**
 * A pattern that is recommended somewhere and does not hold, beside one that does. Code that several variants use stands
 * between `// #region shared` and `// #endregion`.
 */
export interface Race {
  /** What is recommended, for the heading: a noun phrase. Markdown. */
  readonly title: string
  /** What goes wrong, for the table of contents. Markdown. */
  readonly line: string
  /** What is recommended, in which kind of text, and what it promises. Markdown. */
  readonly claim: string
  /** What really happens, which statement comes between which. Markdown. */
  readonly fault: string
  /** Why the right version holds. Markdown. */
  readonly remedy: string
  readonly tables: string
  /** Made after the tables. Shown in the region of the variant that calls them. */
  readonly functions?: string
  readonly setup: (db: ExploreHandle) => unknown
  readonly invariant: ExploreOptions['invariant']
  /** In the order of the page; mostly `wrong`, then `right`. */
  readonly variants: readonly Variant[]
}

export const schemaOf = ({ tables, functions }: Race): string =>
  functions ? `${tables}; ${functions}` : tables
