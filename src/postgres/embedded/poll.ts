import { sleep } from '../sleep.js'

/** Calls `check` every `everyMs` until it returns a value. Returns undefined after `withinMs`. */
export async function poll<T>(
  check: () => T | undefined | Promise<T | undefined>,
  { everyMs, withinMs }: { readonly everyMs: number; readonly withinMs: number },
): Promise<T | undefined> {
  const deadline = performance.now() + withinMs
  for (;;) {
    const found = await check()
    if (found !== undefined || performance.now() > deadline) return found
    await sleep(everyMs)
  }
}
