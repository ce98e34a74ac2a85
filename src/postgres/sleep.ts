import { setTimeout as timeout } from 'node:timers/promises'

/** `ref: false` lets the process end during the sleep. */
export async function sleep(ms: number, signal?: AbortSignal, { ref = true } = {}): Promise<void> {
  await timeout(ms, undefined, { signal, ref })
}
