import type { StandardSchemaV1 } from '@standard-schema/spec'
import { InvalidInputError, InvalidOutcomeError, StoredValueError } from '../errors.js'
import { refuseValue } from '../options/refuse-value.js'

/** A schema of Zod, Valibot, ArkType or another library that follows standardschema.dev. */
export type StandardSchema<Input = unknown, Output = Input> = StandardSchemaV1<Input, Output>

/** Parses a value with a schema. Without a schema, returns the value as it is. */
async function parse<T>(
  schema: StandardSchema<unknown, T> | undefined,
  value: unknown,
  refuse: (issues: readonly string[]) => Error,
): Promise<T> {
  if (!schema) return value as T
  const result = await schema['~standard'].validate(value)
  if (result.issues) throw refuse(result.issues.map(describeIssue))
  return result.value
}

/** Parses a value that was stored. */
export const parseStored = <T>(
  schema: StandardSchema<unknown, T> | undefined,
  value: unknown,
  subject: string,
): Promise<T> => parse(schema, value, (issues) => new StoredValueError(subject, issues))

/** Parses a value that the caller gave. */
export const parseInput = <T>(schema: StandardSchema<unknown, T> | undefined, value: unknown): Promise<T> =>
  parse(schema, value, (issues) => refuseValue('input', `does not fit its schema: ${issues.join('; ')}`))

/** Refuses the result of a function before it is stored, if its schema could not parse it later. */
export async function checkOutcome(
  schema: StandardSchema | undefined,
  field: string,
  value: unknown,
): Promise<void> {
  const refuse = (issues: readonly string[]): Error =>
    new InvalidOutcomeError(field, `does not fit its schema, and is not stored: ${issues.join('; ')}`)
  await parse(schema, value, refuse)
}

export function checkSchema(field: string, schema: unknown): void {
  const standard: unknown = schema === undefined ? undefined : Reflect.get(Object(schema), '~standard')
  if (schema === undefined || typeof Reflect.get(Object(standard), 'validate') === 'function') return
  throw new InvalidInputError(field, 'must be a Standard Schema, such as one of Zod, Valibot or ArkType')
}

function describeIssue({ message, path = [] }: StandardSchemaV1.Issue): string {
  const at = path.map((part) => String(typeof part === 'object' ? part.key : part)).join('.')
  return at === '' ? message : `${at}: ${message}`
}
