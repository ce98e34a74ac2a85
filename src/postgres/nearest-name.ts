/** The sentences after "there is no such …" in a message, without the last period. At most twelve names are listed. */
export function offerNames(given: string, names: readonly string[]): string {
  if (names.length === 0) return 'There are none'
  const nearest = findNearest(given, names)
  const list =
    names.length > 12 ? `${names.slice(0, 12).join(', ')} and ${names.length - 12} more` : names.join(', ')
  return `${nearest === undefined ? '' : `Did you mean ${nearest}? `}Expected one of: ${list}`
}

/** The name that differs by the fewest letters, if these are few. */
export function findNearest(given: string, names: readonly string[]): string | undefined {
  const ranked = names
    .map((name) => ({ name, distance: distanceFrom(given.toLowerCase(), name.toLowerCase()) }))
    .sort((one, other) => one.distance - other.distance)
  const [best] = ranked
  return best && best.distance <= Math.max(1, Math.floor(given.length / 3)) ? best.name : undefined
}

/** The beginning of a name is as near as one wrong letter. */
function distanceFrom(given: string, name: string): number {
  return given.length > 1 && name !== given && name.startsWith(given) ? 1 : distanceOf(given, name)
}

/** How many letters must be changed, added or left out (Levenshtein). */
function distanceOf(one: string, other: string): number {
  let before = Array.from({ length: other.length + 1 }, (_, n) => n)
  for (const [row, letter] of [...one].entries()) {
    const now = [row + 1]
    for (const [column, theirs] of [...other].entries()) {
      const changed = (before[column] ?? 0) + (letter === theirs ? 0 : 1)
      now.push(Math.min(changed, (before[column + 1] ?? 0) + 1, (now[column] ?? 0) + 1))
    }
    before = now
  }
  return before.at(-1) ?? 0
}
