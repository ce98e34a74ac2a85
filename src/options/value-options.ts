import { InvalidInputError } from '../errors.js'
import { checkFunction } from './check-function.js'
import { nameGiven, showGiven } from './name-given.js'
import { type Default, type DefaultedOption, type Option, optionOf } from './option.js'

export function boolean(settings: Default<boolean>): DefaultedOption<boolean>
export function boolean(): Option<boolean>
export function boolean(settings: { readonly default?: boolean } = {}): Option<boolean> {
  return optionOf(checkBoolean, settings)
}

export function checkBoolean(field: string, value: unknown): void {
  if (typeof value !== 'boolean')
    throw new InvalidInputError(field, `must be true or false, not ${showGiven(value)}`)
}

/** One of several strings. */
export function oneOf<const T extends string>(
  values: readonly T[],
  settings: Default<NoInfer<T>>,
): DefaultedOption<T>
export function oneOf<const T extends string>(values: readonly T[]): Option<T>
export function oneOf<const T extends string>(
  values: readonly T[],
  settings: { readonly default?: T } = {},
): Option<T> {
  return optionOf((field, value) => checkOneOf(field, value, values), settings)
}

export function checkOneOf<T extends string>(field: string, value: unknown, values: readonly T[]): T {
  if ((values as readonly unknown[]).includes(value)) return value as T
  throw new InvalidInputError(
    field,
    `must be ${list(values.map((one) => `'${one}'`))}, not ${showGiven(value)}`,
  )
}

/** `a, b or c` */
export const list = (names: readonly string[]): string =>
  names.length < 2 ? names.join('') : `${names.slice(0, -1).join(', ')} or ${names.at(-1)}`

interface Length {
  /** The least number of characters. Default 0. */
  readonly min?: number
  /** The most characters. */
  readonly max?: number
}

export function string(settings: Length & Default<string>): DefaultedOption<string>
export function string(settings?: Length): Option<string>
export function string({
  min = 0,
  max,
  ...settings
}: Length & Partial<Default<string>> = {}): Option<string> {
  const range = max === undefined ? (min === 0 ? '' : `at least ${min}`) : `${min} to ${max}`
  const check = (field: string, value: unknown): void => {
    if (typeof value === 'string' && value.length >= min && value.length <= (max ?? value.length)) return
    const given = typeof value === 'string' ? `one of ${value.length}` : nameGiven(value)
    throw new InvalidInputError(
      field,
      `must be a string${range === '' ? '' : ` of ${range} characters`}, not ${given}`,
    )
  }
  return optionOf(check, { ...settings, bounds: range === '' ? undefined : `${range} characters` })
}

export function stringList(settings: Default<readonly string[]>): DefaultedOption<readonly string[]>
export function stringList(): Option<readonly string[]>
export function stringList(settings: Partial<Default<readonly string[]>> = {}): Option<readonly string[]> {
  const check = (field: string, value: unknown): void => {
    if (!Array.isArray(value))
      throw new InvalidInputError(field, `must be an array of strings, not ${nameGiven(value)}`)
    const wrong = value.findIndex((one) => typeof one !== 'string')
    if (wrong >= 0)
      throw new InvalidInputError(`${field}[${wrong}]`, `must be a string, not ${nameGiven(value[wrong])}`)
  }
  return optionOf(check, settings)
}

/** A function of the caller. */
export const func = <T>(): Option<T> => optionOf(checkFunction)

/** An instance of a class: `instance(AbortSignal)`. */
export const instance = <T>(type: abstract new (...args: never[]) => T): Option<T> =>
  optionOf((field, value) => {
    if (!(value instanceof type))
      throw new InvalidInputError(
        field,
        `must be ${/^[AEIO]/.test(type.name) ? 'an' : 'a'} ${type.name}, not ${nameGiven(value)}`,
      )
  })

export const abortSignal = (): Option<AbortSignal> => instance(AbortSignal)

export const date = (): Option<Date> =>
  optionOf((field, value) => {
    if (!(value instanceof Date))
      throw new InvalidInputError(field, `must be a Date, not ${nameGiven(value)}`)
    if (Number.isNaN(value.getTime()))
      throw new InvalidInputError(field, 'must be a valid Date, not an Invalid Date')
  })
