/** Those of one process that wait for the same name, in the order in which they came. The first of them asks the database, the others wait here. */
export class LockQueue {
  readonly #queues = new Map<string, (() => void)[]>()

  /** @returns what hands the turn on; undefined if it did not come within `ms`, or `signal` fired */
  async enter(
    name: string,
    ms: number,
    signal: AbortSignal | undefined,
    onWait: () => void,
  ): Promise<(() => void) | undefined> {
    const queue = this.#queues.get(name)
    if (queue === undefined) this.#queues.set(name, [])
    else {
      onWait()
      if (!(await waitIn(queue, ms, signal))) return undefined
    }
    return () => this.#next(name)
  }

  #next(name: string): void {
    const wake = this.#queues.get(name)?.shift()
    if (wake) wake()
    else this.#queues.delete(name)
  }
}

function waitIn(queue: (() => void)[], ms: number, signal: AbortSignal | undefined): Promise<boolean> {
  return new Promise((resolve) => {
    const finish = (isTurn: boolean): void => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', leave)
      resolve(isTurn)
    }
    const leave = (): void => {
      const place = queue.indexOf(wake)
      if (place >= 0) queue.splice(place, 1)
      finish(false)
    }
    const wake = (): void => finish(true)
    const timer = setTimeout(leave, ms)
    signal?.addEventListener('abort', leave)
    queue.push(wake)
  })
}
