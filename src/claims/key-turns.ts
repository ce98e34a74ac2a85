import type { Database } from '../postgres/database.js'

/** Told when it is its turn, or when there is no need for one any more. */
type Waiter = (isOver: boolean) => void

const queues = new WeakMap<Database, Map<string, Set<Waiter>>>()

/**
 * Lets one call of this process at a time go to the database with a key, in the order in which they came; the others wait
 * here, and not each on a connection of the pool, which they would take from everybody else. Once the key has its outcome
 * they need not wait for each other.
 *
 * @returns what says that the turn is over; undefined: none came within `ms`
 */
export async function takeTurn(
  database: Database,
  key: string,
  ms: number,
): Promise<((hasOutcome: boolean) => void) | undefined> {
  const all = queues.get(database) ?? new Map<string, Set<Waiter>>()
  queues.set(database, all)
  const queue = all.get(key)
  if (queue) {
    const isOver = await waitIn(queue, ms)
    if (isOver === undefined) return undefined
    if (isOver) return () => {}
  } else all.set(key, new Set())
  return (hasOutcome) => endTurn(all, key, hasOutcome)
}

function waitIn(queue: Set<Waiter>, ms: number): Promise<boolean | undefined> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      queue.delete(wake)
      resolve(undefined)
    }, ms)
    const wake: Waiter = (isOver) => {
      clearTimeout(timer)
      resolve(isOver)
    }
    queue.add(wake)
  })
}

function endTurn(all: Map<string, Set<Waiter>>, key: string, hasOutcome: boolean): void {
  const queue = all.get(key)
  const [next] = queue ?? []
  if (queue && next && !hasOutcome) {
    queue.delete(next)
    next(false)
    return
  }
  all.delete(key)
  for (const wake of queue ?? []) wake(true)
}
