/** The last exploration. Two at a time would share the process's globals and event loop, and could not be reproduced. */
let previous: Promise<unknown> = Promise.resolve()

/** Runs an exploration or a crash loop after all earlier ones of this process have ended. */
export function runOneAtATime<T>(fn: () => Promise<T>): Promise<T> {
  const result = previous.then(fn)
  previous = result.catch(() => {})
  return result
}
