import { constants } from 'node:os'
import { printLine } from './print-line.js'

/** npm passes Ctrl-C on to this process, which also gets it from the terminal. Within this time both count as one. */
const DOUBLED_MS = 300

/** Returns a signal that fires at the first SIGINT or SIGTERM, to stop in order. The second one ends the process at once. */
export function onStopSignal(): AbortSignal {
  const stop = new AbortController()
  let first: { readonly name: string; readonly at: number } | undefined
  for (const name of ['SIGINT', 'SIGTERM'] as const) {
    process.on(name, () => {
      if (!first) {
        first = { name, at: performance.now() }
        printLine('Stopping …')
        stop.abort()
        return
      }
      const isForwarded =
        process.env.npm_lifecycle_event !== undefined && first.name === 'SIGINT' && name === 'SIGINT'
      if (isForwarded && performance.now() - first.at < DOUBLED_MS) return
      process.exit(128 + constants.signals[name])
    })
  }
  return stop.signal
}
