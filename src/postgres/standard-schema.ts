import { InvalidInputError, InvalidOutcomeError, StoredValueError } from '../errors.js'
import { refuseValue } from './refuse-value.js'

/** What Zod, Valibot, ArkType and others agree on (standardschema.dev): enough of it to parse with. */
export interface StandardSchema<Input = unknown, Output = Input> {
  readonly '~standard': {
    readonly version: 1
    readonly vendor: string
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>
    readonly types?: { readonly input: Input; readonly output: Output } | undefined
  }
}

type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly SchemaIssue[] }

interface SchemaIssue {
  readonly message: string
  readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined
}

/** What a schema makes of a value; a schema that is absent lets it through. */
export async function parseStored<T>(
  schema: StandardSchema<unknown, T> | undefined,
  value: unknown,
  subject: string,
): Promise<T> {
  if (!schema) return value as T
  const result = await schema['~standard'].validate(value)
  if (result.issues) throw new StoredValueError(subject, result.issues.map(describeIssue))
  return result.value
}

/** Refuses what a schema would not read once it is stored. */
export async function checkOutcome(
  schema: StandardSchema | undefined,
  field: string,
  value: unknown,
): Promise<void> {
  const result = await schema?.['~standard'].validate(value)
  if (result?.issues)
    throw new InvalidOutcomeError(
      field,
      `does not fit its schema, and is not stored: ${result.issues.map(describeIssue).join('; ')}`,
    )
}

/** The same for what a caller gave. */
export async function parseInput<T>(
  schema: StandardSchema<unknown, T> | undefined,
  value: unknown,
): Promise<T> {
  if (!schema) return value as T
  const result = await schema['~standard'].validate(value)
  if (result.issues)
    throw refuseValue('input', `does not fit its schema: ${result.issues.map(describeIssue).join('; ')}`)
  return result.value
}

export function checkSchema(field: string, schema: unknown): void {
  const standard: unknown = schema === undefined ? undefined : Reflect.get(Object(schema), '~standard')
  if (schema === undefined || typeof Reflect.get(Object(standard), 'validate') === 'function') return
  throw new InvalidInputError(field, 'must be a Standard Schema, such as one of Zod, Valibot or ArkType')
}

function describeIssue({ message, path = [] }: SchemaIssue): string {
  const at = path.map((part) => String(typeof part === 'object' ? part.key : part)).join('.')
  return at === '' ? message : `${at}: ${message}`
}
