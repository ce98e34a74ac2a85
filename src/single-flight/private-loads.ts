import { ClosedError } from '../errors.js'
import { toOutcome } from '../postgres/json.js'
import { checkOutcome } from '../postgres/standard-schema.js'
import { unlessAborted } from '../postgres/with-timeout.js'
import type { FlightSpec } from './flight-spec.js'
import { readLoaded } from './leased-load.js'

/** The loads of one instance that are each for one caller alone (`ifBusy: 'load'`). */
export class PrivateLoads {
  readonly #endings = new Set<AbortController>()

  /** Loads a value for one caller, in the form that a stored value has. Ends with the caller's signal and with `close`, even if the load hangs. */
  async run(spec: FlightSpec): Promise<unknown> {
    const { signal } = spec
    signal?.throwIfAborted()
    // Each load has its own signal, so that listeners which a load leaves behind do not pile up on a shared signal.
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

  /** Ends all loads. */
  close(): void {
    for (const ending of this.#endings) ending.abort(new ClosedError())
  }
}

async function load({ key, load, result }: FlightSpec, signal: AbortSignal): Promise<unknown> {
  const value = await load({ key, signal, fence: undefined })
  const json = value === undefined ? null : toOutcome('value', value)
  // A schema may mutate its input, so the value is parsed again.
  await checkOutcome(result, 'value', readLoaded(json))
  return readLoaded(json)
}
