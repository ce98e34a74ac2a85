import type { Database } from '../postgres/database.js'

/** Resolves to whether the key has its outcome now. */
type Turn = Promise<boolean>

const turns = new WeakMap<Database, Map<string, Turn>>()

/**
 * Lets one call of this process at a time go to the database with a key; the others wait here, and not each on a connection of the
 * pool, which they would take from everybody else. Once the key has its outcome they need not wait for each other.
 *
 * @returns what says that the turn is over; undefined: none came within `leftMs`
 */
export async function takeTurn(
  database: Database,
  key: string,
  leftMs: () => number,
): Promise<((hasOutcome: boolean) => void) | undefined> {
  const all = turns.get(database) ?? new Map<string, Turn>()
  turns.set(database, all)
  for (let turn = all.get(key); turn; turn = all.get(key)) {
    const hasOutcome = await within(turn, leftMs())
    if (hasOutcome === undefined) return undefined
    if (hasOutcome) return () => {}
  }
  let end: (hasOutcome: boolean) => void = () => {}
  const mine: Turn = new Promise((resolve) => {
    end = resolve
  })
  all.set(key, mine)
  return (hasOutcome) => {
    all.delete(key)
    end(hasOutcome)
  }
}

function within(turn: Turn, ms: number): Promise<boolean | undefined> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms, undefined)
    void turn.then((hasOutcome) => {
      clearTimeout(timer)
      resolve(hasOutcome)
    })
  })
}
