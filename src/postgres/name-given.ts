/** What a caller gave where a transaction was asked for, in words that follow "it is". */
export function nameGiven(value: unknown): string {
  if (value === undefined || value === null) return String(value)
  if (typeof value === 'function') return 'a function'
  if (typeof value !== 'object') return `a ${typeof value}`
  const name = value.constructor?.name
  return name && name !== 'Object' ? `an object of the class ${name}` : 'a plain object'
}

/** The same where a text is wanted: which one it was. */
export const showGiven = (value: unknown): string =>
  typeof value === 'string' ? JSON.stringify(value.slice(0, 100)) : nameGiven(value)

/** True for an object, or a function that serves as one, that has all these methods. */
export function hasMethods(value: unknown, ...names: string[]): boolean {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return false
  return names.every((name) => typeof Reflect.get(value, name) === 'function')
}
