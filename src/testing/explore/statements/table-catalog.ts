import type { ClientBase } from 'pg'
import type { TableInfo } from './schema-info.js'
import { type FoundTable, TABLE_INFO_LOOK_UP } from './table-query.js'

/** The last part of a qualified name in the form of `joinName`, without quotes. */
export function bareName(name: string): string {
  const quoted = /"((?:[^"]|"")*)"$/.exec(name)?.[1]
  return quoted === undefined ? (name.split('.').at(-1) as string) : quoted.replaceAll('""', '"')
}

function schemaOf(name: string): string | undefined {
  const rest = name.slice(0, /(?:"(?:[^"]|"")*"|[^."]*)$/.exec(name)?.index ?? 0)
  return rest === '' ? undefined : bareName(rest.slice(0, -1))
}

/** Looks up tables and remembers what it found. */
export class TableCatalog {
  readonly #control: Pick<ClientBase, 'query'>
  readonly #isPathKnown: boolean
  readonly #tables = new Map<string, TableInfo>()

  /** @param isPathKnown false if actors may have another search_path than `control` */
  constructor(control: Pick<ClientBase, 'query'>, isPathKnown: boolean) {
    this.#control = control
    this.#isPathKnown = isPathKnown
  }

  async learn(names: readonly string[]): Promise<void> {
    if (names.length === 0) return
    const { rows } = await this.#control.query<{ found: FoundTable }>(TABLE_INFO_LOOK_UP, [
      names.map(bareName),
    ])
    const found = rows.map((row) => row.found)
    for (const name of names) this.#tables.set(name, this.#choose(name, found))
  }

  get(name: string): TableInfo {
    return this.#tables.get(name) ?? unpredictable(`${name} is not known`)
  }

  forget(): void {
    this.#tables.clear()
  }

  /** The table that a statement means by `name`, of all tables with the last part of that name. */
  #choose(name: string, all: readonly FoundTable[]): TableInfo {
    const schema = schemaOf(name)
    const named = all.filter((one) => one.name === bareName(name) && (!schema || one.schema === schema))
    const visible = schema === undefined && this.#isPathKnown ? named.filter((one) => one.isVisible) : []
    const [first, ...others] = (visible.length > 0 ? visible : named).map(toTableInfo)
    if (!first) return unpredictable(`${name} is not known`)
    if (others.length === 0) return first
    const [text, ...texts] = [first, ...others].map((table) => JSON.stringify({ ...table, schema: null }))
    return texts.every((other) => other === text)
      ? { ...first, schema: undefined }
      : unpredictable(`several tables are called ${name}`)
  }
}

const unpredictable = (why: string): TableInfo => ({
  unpredictable: why,
  columns: [],
  uniques: [],
  foreignKeys: [],
  referenced: null,
})

function toTableInfo(found: FoundTable): TableInfo {
  const { schema, columns, uniques, foreignKeys, referenced } = found
  return {
    schema,
    unpredictable: whyUnpredictable(found),
    unpredictableWrites: whyWritesUnpredictable(found),
    columns,
    uniques,
    foreignKeys,
    referenced,
  }
}

function whyUnpredictable({ name, kind, isInherited, hasPolicies }: FoundTable): string | undefined {
  if (kind === 'v') return `${name} is a view`
  if (kind === 'f') return `${name} is a foreign table`
  if (kind === 'p' || isInherited) return `${name} is made of several tables`
  return hasPolicies ? `${name} has row security policies` : undefined
}

function whyWritesUnpredictable(found: FoundTable): string | undefined {
  const { name, trigger, rule } = found
  if (trigger !== null) return `${name} has the trigger ${trigger}` // guard: explorer.reduce-trigger
  if (rule !== null) return `${name} has the rule ${rule}`
  if (found.function !== null) return `${name} uses ${found.function} for a default, a check or an index`
  return found.isDeferrable ? `${name} has a constraint that can be deferred to COMMIT` : undefined
}
