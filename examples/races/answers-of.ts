import type { ExploreOptions } from 'dibs/testing'

type Outcomes = Parameters<NonNullable<ExploreOptions['invariant']>>[1]

/** What each actor's function returned, by its name. Those that failed are left out. */
export const answersOf = (outcomes: Outcomes): Record<string, unknown> =>
  Object.fromEntries(
    Object.entries(outcomes).flatMap(([name, outcome]) =>
      outcome.status === 'fulfilled' ? [[name, outcome.value]] : [],
    ),
  )
