/** Two explorations in one process would share its globals and its event loop, and gain nothing. */
let previous: Promise<unknown> = Promise.resolve()

/** Begins when all that came before is over. */
export function inTurn<T>(fn: () => Promise<T>): Promise<T> {
  const turn = previous.then(fn)
  previous = turn.catch(() => {})
  return turn
}
