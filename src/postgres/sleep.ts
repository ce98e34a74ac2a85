import { setTimeout as timeout } from 'node:timers/promises'

/** `ref: false` does not keep the process from ending. */
export async function sleep(ms: number, signal?: AbortSignal, { ref = true } = {}): Promise<void> {
  await timeout(ms, undefined, { signal, ref })
}
