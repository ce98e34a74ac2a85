import { AsyncLocalStorage } from 'node:async_hooks'

/** Lets go at its end: what a flow has started, and goes on, is not run again by anybody. */
interface RetryScope {
  isOpen: boolean
}

const surrounding = new AsyncLocalStorage<RetryScope>()

/** True where a conflict makes everything around run again. */
export const isRepeated = (): boolean => surrounding.getStore()?.isOpen === true

/** Runs what is run again from its start after a conflict. */
export async function asRepeated<T>(run: () => Promise<T>): Promise<T> {
  const scope = { isOpen: true }
  try {
    return await surrounding.run(scope, run)
  } finally {
    scope.isOpen = false
  }
}
