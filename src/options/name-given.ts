/** The most of a string or a name that a message shows. */
const MAX_SHOWN = 100

/** The kind of a value, for a message: `a string`, `a Map`, `an array`, `a plain object`. Never throws. */
export function nameGiven(value: unknown): string {
  if (value === undefined || value === null) return String(value)
  if (typeof value !== 'object') return `a ${typeof value}`
  const name = readClassName(value)
  if (name === undefined) return 'an object'
  if (name === 'Object' || name === '') return 'a plain object'
  return name === 'Array' ? 'an array' : `${/^[AEIO]/i.test(name) ? 'an' : 'a'} ${cut(name)}`
}

function readClassName(value: object): string | undefined {
  try {
    const name: unknown = value.constructor?.name ?? ''
    return typeof name === 'string' ? name : undefined
  } catch {
    return undefined // a proxy or a getter that throws
  }
}

/**
 * Shows a value in a message: a string or a number itself, any other value by its kind. Never throws, and the length is
 * bounded.
 */
export function showGiven(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(cut(value))
  return ['number', 'bigint', 'boolean'].includes(typeof value) ? cut(`${value}`) : nameGiven(value)
}

/** The message of any thrown value. Never throws. */
export function showError(error: unknown): string {
  try {
    return cut(String(error instanceof Error ? error.message : error), 1_000)
  } catch {
    return nameGiven(error)
  }
}

const cut = (text: string, length = MAX_SHOWN): string =>
  text.length > length ? `${text.slice(0, length)}…` : text

/** True for an object, or a function that serves as one, that has all these methods. */
export function hasMethods(value: unknown, ...names: string[]): boolean {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return false
  return names.every((name) => typeof Reflect.get(value, name) === 'function')
}
