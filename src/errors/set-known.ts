import type { DibsError } from './dibs-error.js'

/** Sets the fields that have a value. The others stay absent, also in `toJSON`. */
export function setKnown<E extends DibsError>(
  error: E,
  fields: { readonly [K in keyof E]?: E[K] | undefined },
): void {
  for (const [name, value] of Object.entries(fields)) if (value !== undefined) Reflect.set(error, name, value)
}
