const OF_CRASH_LOOP = /^(?:none|(?:crash|error|half-open|zombie|server|process):.*)$/

/** What the environment asks to be run again, if it is meant for this one: one variable serves both. */
export function givenReplay(of: 'explore' | 'crashLoop'): string | undefined {
  const given = process.env.DIBS_REPLAY || undefined
  const isForLoop = given !== undefined && OF_CRASH_LOOP.test(given)
  return isForLoop === (of === 'crashLoop') ? given : undefined
}
