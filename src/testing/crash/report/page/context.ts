import type { Stories } from './stories.js'

/** What all parts of the page need to know of each other. */
export interface Context {
  readonly stories: Stories
  /** The identity of the crash loop. */
  readonly identity: string
  /** The sheet that is open before anything was chosen. */
  readonly shown: string
  /** Names of the ways that the page describes. */
  readonly ways: ReadonlySet<string>
}
