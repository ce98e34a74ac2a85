import { type Option, optionOf } from '../options/option.js'
import { string } from '../options/value-options.js'
import { checkCharacters } from '../postgres/key.js'

/** A string of bounded length that PostgreSQL can store unchanged. */
export function storedString(length: { readonly min?: number; readonly max: number }): Option<string> {
  const { check, bounds } = string(length)
  const checkStored = (field: string, value: unknown): void => {
    check(field, value)
    checkCharacters(field, value as string)
  }
  return optionOf(checkStored, { bounds })
}

/** The name of a job or of a queue. */
export const storedName = storedString({ min: 1, max: 200 })

export function checkName(field: string, name: string): string {
  storedName.check(field, name)
  return name
}
