import type { ExploreHandle, ExploreOptions } from 'dibs/testing'
import type { Pattern, PatternVariant } from './pattern.js'

/** One way to write a thing, and what the explorer must say of it. */
export interface Variant extends PatternVariant {
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

/** A pattern that does not hold when others come between. */
export interface Race extends Pattern<Variant> {
  /** Made after the tables. Shown in the region of the variant that calls them. */
  readonly functions?: string
  readonly setup: (db: ExploreHandle) => unknown
  readonly invariant: ExploreOptions['invariant']
}

export const schemaOf = ({ tables, functions }: Race): string =>
  functions ? `${tables}; ${functions}` : tables
