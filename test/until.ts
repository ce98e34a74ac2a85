/** Polls until `probe` answers something other than undefined or false; fails after a bound. */
export async function until<T>(
  probe: () => Promise<T | undefined | false> | T | undefined | false,
  what: string,
  withinMs = 60_000,
): Promise<T> {
  const deadline = Date.now() + withinMs
  for (;;) {
    const found = await probe()
    if (found !== undefined && found !== false) return found
    if (Date.now() > deadline) throw new Error(`Waited ${withinMs / 1000} s in vain: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
}
