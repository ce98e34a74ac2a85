const cleanups: (() => Promise<unknown>)[] = []

/** Runs `cleanup` when all tests of the file have ended, however deep in it the caller stands. */
export function afterFile(cleanup: () => Promise<unknown>): void {
  cleanups.push(cleanup)
}

/** For `test/leaks.ts`. */
export async function runCleanups(): Promise<void> {
  await Promise.all(cleanups.splice(0).map((cleanup) => cleanup()))
}
