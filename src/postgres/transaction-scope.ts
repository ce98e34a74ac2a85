import { AsyncLocalStorage } from 'node:async_hooks'
import type { Connections } from './connections.js'

/**
 * A transaction that surrounds the current flow of calls. The scope is closed when the transaction ends: later work is
 * not inside.
 */
export interface TransactionScope {
  readonly owner: Connections
  isOpen: boolean
  readonly outer: TransactionScope | undefined
}

const surrounding = new AsyncLocalStorage<TransactionScope>()

function findOpen(matches: (scope: TransactionScope) => boolean): TransactionScope | undefined {
  let scope = surrounding.getStore()
  while (scope && !(scope.isOpen && matches(scope))) scope = scope.outer
  return scope
}

export const newScope = (owner: Connections): TransactionScope => ({
  owner,
  isOpen: true,
  outer: findOpen(() => true),
})

export const runInside = <T>(scope: TransactionScope, fn: () => Promise<T>): Promise<T> =>
  surrounding.run(scope, fn)

/** True inside a transaction of the same instance that has not ended. */
export const isInside = (connections: Connections): boolean =>
  findOpen(({ owner }) => owner === connections) !== undefined

/** True inside a transaction of any instance that has not ended. */
export const isInsideAny = (): boolean => findOpen(() => true) !== undefined
