import type { ExploreOptions } from '../options.js'

/** The options of `explore` or `crashLoop` that a test session needs. */
export interface TestSessionOptions
  extends Pick<
    ExploreOptions,
    'pool' | 'url' | 'setup' | 'actors' | 'reset' | 'isolation' | 'seed' | 'clockStartsAt' | 'slowDeadlocks'
  > {
  /** The word for one run of the actors in messages: `schedule` for `explore`, `run` for `crashLoop`. Default `schedule`. */
  readonly runName?: 'schedule' | 'run' | undefined
  /** True: the timeouts of idle transactions stay as the server and the code under test set them. */
  readonly keepsIdleTimeouts?: boolean | undefined
}
