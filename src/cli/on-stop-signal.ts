import { constants } from 'node:os'
import { isatty } from 'node:tty'
import { say } from './say.js'

/** Within this time a second Ctrl-C is the first one, handed on by npm. */
const DOUBLED_MS = 300

/** Aborted at the first SIGINT or SIGTERM, to stop in order. The second ends the process at once. */
export function onStopSignal(): AbortSignal {
  const stop = new AbortController()
  let stoppedAt = 0
  for (const name of ['SIGINT', 'SIGTERM'] as const) {
    process.on(name, () => {
      if (stop.signal.aborted) {
        if (performance.now() - stoppedAt < DOUBLED_MS && name === 'SIGINT' && comesTwice()) return
        process.exit(128 + constants.signals[name])
      }
      stoppedAt = performance.now()
      say('Stopping …')
      stop.abort()
    })
  }
  return stop.signal
}

/** A terminal sends Ctrl-C to npm and to us, and npm hands it on to us. */
const comesTwice = (): boolean => process.env.npm_lifecycle_event !== undefined && isatty(0)
