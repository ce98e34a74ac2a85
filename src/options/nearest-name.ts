/** The sentences after "there is no such …" in a message, without the last period. At most twelve names are listed. */
export function offerNames(input: string, names: readonly string[]): string {
  if (names.length === 0) return 'There are none'
  const nearest = findNearest(input, names)
  const list =
    names.length > 12 ? `${names.slice(0, 12).join(', ')} and ${names.length - 12} more` : names.join(', ')
  return `${nearest === undefined ? '' : `Did you mean ${nearest}? `}Expected one of: ${list}`
}

/** The name that differs by the fewest letters, if these are few. */
export function findNearest(input: string, names: readonly string[]): string | undefined {
  const ranked = names
    .map((name) => ({ name, distance: distanceFrom(input.toLowerCase(), name.toLowerCase()) }))
    .sort((one, other) => one.distance - other.distance)
  const [best] = ranked
  return best && best.distance <= Math.max(1, Math.floor(input.length / 3)) ? best.name : undefined
}

/** The beginning of a name is as near as one wrong letter. */
function distanceFrom(input: string, name: string): number {
  return input.length > 1 && name !== input && name.startsWith(input) ? 1 : distanceOf(input, name)
}

/** How many letters must be changed, added, left out, or swapped with their neighbor (optimal string alignment). */
function distanceOf(one: string, other: string): number {
  let previous: number[] = []
  let before = Array.from({ length: other.length + 1 }, (_, n) => n)
  for (let row = 0; row < one.length; row++) {
    const now = [row + 1]
    for (let column = 0; column < other.length; column++) {
      const changed = (before[column] ?? 0) + (one[row] === other[column] ? 0 : 1)
      const isSwapped =
        row > 0 && column > 0 && one[row] === other[column - 1] && one[row - 1] === other[column]
      const swapped = isSwapped ? (previous[column - 1] ?? 0) + 1 : changed
      now.push(Math.min(changed, swapped, (now[column] ?? 0) + 1, (before[column + 1] ?? 0) + 1))
    }
    ;[previous, before] = [before, now]
  }
  return before.at(-1) ?? 0
}
