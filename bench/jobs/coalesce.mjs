import { setImmediate as turn } from 'node:timers/promises'

/** Calls that come while a batch is on its way go with the next one; each resolves when its own is committed. */
export function coalesce(addMany) {
  let waiting = []
  let isAdding = false

  async function addWaiting() {
    isAdding = true
    for (await turn(); waiting.length > 0; await turn()) {
      // A turn, since those who were just answered call again in it.
      const batch = waiting
      waiting = []
      try {
        await addMany(batch.map(({ payload }) => payload))
        for (const { resolve } of batch) resolve()
      } catch (error) {
        for (const { reject } of batch) reject(error)
      }
    }
    isAdding = false
  }

  return (payload) =>
    new Promise((resolve, reject) => {
      waiting.push({ payload, resolve, reject })
      if (!isAdding) void addWaiting()
    })
}
