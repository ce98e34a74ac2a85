import { constants } from 'node:os'
import { say } from './say.js'

/** Within this time a second Ctrl-C under npm is the first one, handed on: it goes to npm and to us. */
const DOUBLED_MS = 300

/** Aborted at the first SIGINT or SIGTERM, to stop in order. The second ends the process at once. */
export function onStopSignal(): AbortSignal {
  const stop = new AbortController()
  let first: { readonly name: string; readonly at: number } | undefined
  for (const name of ['SIGINT', 'SIGTERM'] as const) {
    process.on(name, () => {
      if (!first) {
        first = { name, at: performance.now() }
        say('Stopping …')
        stop.abort()
        return
      }
      const isHandedOn =
        process.env.npm_lifecycle_event !== undefined && first.name === 'SIGINT' && name === 'SIGINT'
      if (isHandedOn && performance.now() - first.at < DOUBLED_MS) return
      process.exit(128 + constants.signals[name])
    })
  }
  return stop.signal
}
