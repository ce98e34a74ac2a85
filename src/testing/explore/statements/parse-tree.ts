/** A node of libpg-query's JSON. A node inside a list or a field has one key, which is its kind: `{ SelectStmt: … }`. */
export type Node = Readonly<Record<string, unknown>>

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** The content of a node of this kind; undefined for any other. */
export function childOf(node: unknown, kind: string): Node | undefined {
  const found = isRecord(node) ? node[kind] : undefined
  return isRecord(found) ? found : undefined
}

export const listOf = (value: unknown): readonly unknown[] => (Array.isArray(value) ? value : [])

/** True if some node of the tree, at any depth, passes the test. */
export function someNode(tree: unknown, test: (kind: string, node: Node) => boolean): boolean {
  if (Array.isArray(tree)) return tree.some((item) => someNode(item, test))
  if (!isRecord(tree)) return false
  return Object.entries(tree).some(
    ([kind, node]) => (isRecord(node) && test(kind, node)) || someNode(node, test),
  )
}

/** The content of all nodes of a kind, at any depth. */
export function nodesOf(tree: unknown, kind: string): Node[] {
  const found: Node[] = []
  someNode(tree, (other, node) => {
    if (other === kind) found.push(node)
    return false
  })
  return found
}

/** The columns that an expression names at any depth, each as the parts of its name. */
export const columnRefsIn = (tree: unknown): (readonly (string | undefined)[])[] =>
  nodesOf(tree, 'ColumnRef').map(({ fields }) => nameParts(fields))

/** The parts of a name, from a list of String nodes; `undefined` stands for `*`. */
export const nameParts = (value: unknown): readonly (string | undefined)[] =>
  listOf(value).map((part) => {
    const text = childOf(part, 'String')
    return text && `${text.sval ?? ''}`
  })

/** The name without its schema: the column of a ColumnRef's fields, the function of a FuncCall. */
export const lastPart = (value: unknown): string | undefined => nameParts(value).at(-1)

/** The column of a ColumnRef; undefined for any other expression. */
export const columnOf = (node: unknown): string | undefined => lastPart(childOf(node, 'ColumnRef')?.fields)

/** A name as PostgreSQL's own `parse_ident` can take it apart again. */
export const joinName = (parts: readonly (string | undefined)[]): string =>
  parts
    .map((part) => (/^[a-z_][a-z0-9_$]*$/.test(`${part}`) ? part : `"${`${part}`.replaceAll('"', '""')}"`))
    .join('.')

/** A table as a RangeVar names it, written as the catalog expects it. */
export const tableName = ({ schemaname, relname }: Node): string =>
  joinName(schemaname ? [`${schemaname}`, `${relname}`] : [`${relname}`])

/**
 * The names of CTEs that are visible inside a statement: its own, and those of the statements around it. In
 * `with stock as (update stock …)` the inner name is the table, and the outer one is the CTE.
 *
 * @param visit receives each CTE, with the names of CTEs that are visible inside it
 */
export function cteNamesOf(
  { withClause }: Node,
  outer: ReadonlySet<string>,
  visit: (cte: unknown, names: ReadonlySet<string>) => void,
): ReadonlySet<string> {
  if (!isRecord(withClause)) return outer
  const names = new Set(outer)
  const nameOf = (cte: unknown): string => `${childOf(cte, 'CommonTableExpr')?.ctename}`
  const ctes = listOf(withClause.ctes)
  if (withClause.recursive) for (const cte of ctes) names.add(nameOf(cte))
  for (const cte of ctes) {
    visit(cte, new Set(names))
    names.add(nameOf(cte))
  }
  return names
}

/** The rows of VALUES, each as its expressions; undefined if the source of an INSERT is another query. */
export function valueRowsOf(source: unknown): readonly (readonly unknown[])[] | undefined {
  const rows = listOf(childOf(source, 'SelectStmt')?.valuesLists)
  return rows.length > 0 ? rows.map((row) => listOf(childOf(row, 'List')?.items)) : undefined
}
