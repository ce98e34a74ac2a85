/** What one parse tree names and does, at any depth. */
export interface TreeNames {
  readonly functions: readonly string[]
  readonly tables: readonly string[]
  /** FOR UPDATE, FOR SHARE and the like. */
  readonly locksRows: boolean
  /** INSERT, UPDATE, DELETE or MERGE, also in WITH, or SELECT INTO. */
  readonly writes: boolean
}

const WRITING = new Set(['InsertStmt', 'UpdateStmt', 'DeleteStmt', 'MergeStmt', 'intoClause'])
const NONE: ReadonlySet<string> = new Set()

/** Walks the JSON of libpg-query without knowing its 270 kinds of nodes: few keys say all that is asked here. */
export function treeNames(tree: unknown): TreeNames {
  const functions = new Set<string>()
  const tables = new Set<string>()
  let locksRows = false
  let writes = false

  const visit = (node: unknown, key: string, ctes: ReadonlySet<string>): void => {
    if (Array.isArray(node)) {
      for (const item of node) visit(item, key, ctes)
    } else if (isRecord(node)) {
      const scope = visitWith(node, ctes)
      if (typeof node.relname === 'string') addTable(node, key, scope)
      if (Array.isArray(node.funcname)) functions.add(joinName(node.funcname))
      if (node.removeType === 'OBJECT_TABLE') for (const name of droppedNames(node)) tables.add(name)
      for (const [name, value] of Object.entries(node)) {
        if (WRITING.has(name)) writes = true
        if (name === 'lockingClause') locksRows = true
        // `for update of x` names an alias, which need not be a table.
        if (name !== 'withClause' && name !== 'lockedRels') visit(value, name, scope)
      }
    }
  }

  /** In `with stock as (update stock …)` the inner name is the table, and the outer one is not. */
  const visitWith = (node: Record<string, unknown>, ctes: ReadonlySet<string>): ReadonlySet<string> => {
    const clause = node.withClause
    if (!isRecord(clause) || !Array.isArray(clause.ctes)) return ctes
    const scope = new Set(ctes)
    if (clause.recursive) for (const cte of clause.ctes) scope.add(cteName(cte))
    for (const cte of clause.ctes) {
      visit(cte, 'ctes', new Set(scope))
      scope.add(cteName(cte))
    }
    return scope
  }

  const addTable = (node: Record<string, unknown>, key: string, ctes: ReadonlySet<string>): void => {
    const { relname, schemaname } = node
    // The target of a write stands under `relation`, and a CTE cannot be one.
    if (schemaname === undefined && key !== 'relation' && ctes.has(`${relname}`)) return
    tables.add(joinName(schemaname === undefined ? [relname] : [schemaname, relname]))
  }

  visit(tree, '', NONE)
  return { functions: [...functions], tables: [...tables], locksRows, writes }
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function cteName(cte: unknown): string {
  const inner = isRecord(cte) ? cte.CommonTableExpr : undefined
  return isRecord(inner) ? `${inner.ctename}` : ''
}

/** DROP TABLE alone gives its names as lists of strings. */
function droppedNames(node: Record<string, unknown>): string[] {
  const objects = Array.isArray(node.objects) ? node.objects : []
  return objects.flatMap((object) => {
    const list = isRecord(object) && isRecord(object.List) ? object.List.items : undefined
    return Array.isArray(list) ? [joinName(list)] : []
  })
}

function joinName(parts: readonly unknown[]): string {
  return parts.map((part) => quoteIfNeeded(textOf(part))).join('.')
}

function textOf(part: unknown): string {
  if (isRecord(part) && isRecord(part.String)) return `${part.String.sval ?? ''}`
  return `${part}`
}

/** So that PostgreSQL's own `parse_ident` can take the name apart again. */
export function quoteIfNeeded(name: string): string {
  return /^[a-z_][a-z0-9_$]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`
}
