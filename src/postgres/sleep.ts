import { setTimeout as timeout } from 'node:timers/promises'

export async function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  await timeout(ms, undefined, { signal })
}
