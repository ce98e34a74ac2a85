import type { ClientBase, CustomTypesConfig, QueryConfig } from 'pg'
import { readFault } from './fault.js'
import type { RenderedStatement } from './statement.js'
import type { TextRow, TextValue } from './text-values.js'

/** Returns column values as the server wrote them, whatever parsers the user has set. Text is the same in binary format. */
export const asText: CustomTypesConfig = {
  getTypeParser: () => (value: unknown) => (Buffer.isBuffer(value) ? value.toString() : value),
}

/** One of our statements in the form that `pg` takes. `prepared`: with its name, so that the server keeps its plan. */
export function toQueryConfig(
  { name, text }: RenderedStatement,
  values: readonly TextValue[],
  prepared: boolean,
): QueryConfig {
  const sent = [...values]
  return prepared ? { name, text, values: sent, types: asText } : { text, values: sent, types: asText }
}

/** Sends a statement that is too rare to need a name. */
export async function queryText(
  client: ClientBase,
  text: string,
  values: readonly TextValue[] = [],
): Promise<TextRow[]> {
  return (await client.query<TextRow>({ text, values: [...values], types: asText })).rows
}

/**
 * Makes `pg` forget the names of our prepared statements if the server has forgotten them: after DISCARD ALL or DEALLOCATE ALL
 * by another user of the connection. Each statement is then parsed again.
 *
 * @returns true if that was the reason of the error. The statement has not run then, and may be sent again.
 */
export function forgetNames(client: ClientBase, error: unknown): boolean {
  const parsed: Record<string, string> | undefined = Reflect.get(client, 'connection')?.parsedStatements
  if (parsed === undefined || readFault(error)?.sqlState !== '26000') return false
  for (const name of Object.keys(parsed)) if (name.startsWith('dibs_')) delete parsed[name]
  return true
}
