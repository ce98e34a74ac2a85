const OF_CRASH_LOOP = /^(?:none|(?:crash|error|half-open|zombie|server|process):.*)$/

/** What the environment asks to be run again, if it is meant for this one: one variable serves both. */
export function givenReplay(of: 'explore' | 'crashLoop'): string | undefined {
  const given = process.env.DIBS_REPLAY || undefined
  if (given === undefined) return undefined
  // What is neither is refused by both.
  const [isForLoop, isForExplorer] = [OF_CRASH_LOOP.test(given), given.startsWith('v1:')]
  return (of === 'explore' ? isForLoop : isForExplorer) ? undefined : given
}
