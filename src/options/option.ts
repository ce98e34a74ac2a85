/**
 * One option of a call: how its value is checked, and what the reference page says about it.
 *
 * @typeParam T the type of the value. It must be exactly the type that the public interface gives the option.
 */
export interface Option<T> {
  /** Throws an `InvalidInputError` that names `field` unless the value fits. Never called for an option that was left out, unless it is required. */
  check(field: string, value: unknown): void
  /** The bounds of the value for the reference page: `50 to 86,400,000`. The type and the description come from the public interface. */
  readonly bounds?: string | undefined
  readonly isRequired?: true
  /** Exists for the compiler alone: makes the type exact. */
  readonly '~exact'?: (value: T) => T
}

/** An option that has a value even if the caller gives none. */
export interface DefaultedOption<T> extends Option<T> {
  readonly default: T
}

/** An option that every caller must give. */
export interface RequiredOption<T> extends Option<T> {
  readonly isRequired: true
}

/** The option that `OptionTable` requires for a field of the public interface. */
export type OptionFor<V> = undefined extends V ? Option<Exclude<V, undefined>> : RequiredOption<V>

export interface Default<T> {
  /** The value of an option that was left out. It must be immutable. */
  readonly default: T
}

/** Makes an option of a check, with a default if `settings` has one. */
export function optionOf<T>(
  check: (field: string, value: unknown) => unknown,
  settings: { readonly default?: T | undefined; readonly bounds?: string | undefined } = {},
): Option<T> {
  return { ...settings, check }
}

/** An option without which the call is refused. */
export const required = <T>(option: Option<T>): RequiredOption<T> => ({ ...option, isRequired: true })

/** An option whose check is a function of the caller's folder. The function throws; its return value is ignored. */
export function checked<T>(
  check: (field: string, value: unknown) => unknown,
  settings: Default<NoInfer<T>> & { readonly bounds?: string },
): DefaultedOption<T>
export function checked<T>(
  check: (field: string, value: unknown) => unknown,
  settings?: { readonly bounds?: string },
): Option<T>
export function checked<T>(
  check: (field: string, value: unknown) => unknown,
  settings: { readonly default?: T; readonly bounds?: string } = {},
): Option<T> {
  return optionOf(check, settings)
}

/** An option that the code which uses it checks, such as `tx`. */
export function unchecked<T>(): Option<T> {
  return optionOf(() => {})
}
