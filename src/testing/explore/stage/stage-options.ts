import type { ExploreOptions } from '../options.js'

/** What the stage needs to know of those who play on it. */
export interface StageOptions
  extends Pick<
    ExploreOptions,
    'pool' | 'url' | 'setup' | 'actors' | 'reset' | 'isolation' | 'seed' | 'clockStartsAt' | 'slowDeadlocks'
  > {
  /** What one time through is called. Default `schedule`. */
  readonly time?: 'schedule' | 'run' | undefined
  /** Transactions that stand still end when the server's settings, or the code's, say so. */
  readonly keepsIdleTimeouts?: boolean | undefined
}
