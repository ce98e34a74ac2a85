import { ClosedError } from '../errors.js'
import { toOutcome } from '../postgres/json.js'
import { checkOutcome } from '../postgres/standard-schema.js'
import { unlessAborted } from '../postgres/with-timeout.js'
import { readLoaded } from './flight-lead.js'
import type { FlightSpec } from './flight-spec.js'

/** The loads of one instance that are each for one caller alone (`ifBusy: 'load'`). */
export class PrivateLoads {
  readonly #endings = new Set<AbortController>()

  /** What is loaded, as those are given it who are given what was stored. Ends with the caller's signal, and with `close`, whatever the load does. */
  async run(spec: FlightSpec): Promise<unknown> {
    const { signal } = spec
    signal?.throwIfAborted()
    // One for each, also if many callers share theirs: what a load leaves on it goes with it.
    const ending = new AbortController()
    const end = (): void => ending.abort(signal?.reason)
    signal?.addEventListener('abort', end)
    this.#endings.add(ending)
    try {
      return await unlessAborted(load(spec, ending.signal), ending.signal)
    } finally {
      this.#endings.delete(ending)
      signal?.removeEventListener('abort', end)
    }
  }

  /** They have had their time. */
  close(): void {
    for (const ending of this.#endings) ending.abort(new ClosedError())
  }
}

async function load({ key, load, result }: FlightSpec, signal: AbortSignal): Promise<unknown> {
  const value = await load({ key, signal, fence: undefined })
  const json = value === undefined ? null : toOutcome('value', value)
  // A schema may change what it reads: its caller has it read once more.
  await checkOutcome(result, 'value', readLoaded(json))
  return readLoaded(json)
}
