import { cteNamesOf, isRecord, joinName, nameParts, tableName } from './parse-tree.js'

/** The names in a parse tree, and whether it locks or writes, at any depth. */
export interface TreeNames {
  readonly functions: readonly string[]
  readonly tables: readonly string[]
  /** True for FOR UPDATE, FOR SHARE or the like. */
  readonly locksRows: boolean
  /** True for INSERT, UPDATE, DELETE or MERGE, also in WITH, and for SELECT INTO. */
  readonly writes: boolean
}

const WRITING = new Set(['InsertStmt', 'UpdateStmt', 'DeleteStmt', 'MergeStmt', 'intoClause'])
const NONE: ReadonlySet<string> = new Set()

/** Walks the JSON of libpg-query by a few keys, so that it need not know all 270 kinds of nodes. */
export function treeNames(tree: unknown): TreeNames {
  const functions = new Set<string>()
  const tables = new Set<string>()
  let locksRows = false
  let writes = false

  const visit = (node: unknown, key: string, outerCtes: ReadonlySet<string>): void => {
    if (Array.isArray(node)) {
      for (const item of node) visit(item, key, outerCtes)
    } else if (isRecord(node)) {
      const ctes = cteNamesOf(node, outerCtes, (cte, names) => visit(cte, 'ctes', names))
      // The target of a write stands under `relation`, and a CTE cannot be one.
      const isCte = node.schemaname === undefined && key !== 'relation' && ctes.has(`${node.relname}`)
      if (typeof node.relname === 'string' && !isCte) tables.add(tableName(node))
      if (Array.isArray(node.funcname)) functions.add(joinName(nameParts(node.funcname)))
      if (node.removeType === 'OBJECT_TABLE') for (const name of droppedNames(node)) tables.add(name)
      for (const [name, value] of Object.entries(node)) {
        if (WRITING.has(name)) writes = true
        if (name === 'lockingClause') locksRows = true
        // `for update of x` names an alias, which need not be a table.
        if (name !== 'withClause' && name !== 'lockedRels') visit(value, name, ctes)
      }
    }
  }

  visit(tree, '', NONE)
  return { functions: [...functions], tables: [...tables], locksRows, writes }
}

/** DROP TABLE is the only statement that gives its tables as lists of strings. */
function droppedNames(node: Record<string, unknown>): string[] {
  const objects = Array.isArray(node.objects) ? node.objects : []
  return objects.flatMap((object) => {
    const list = isRecord(object) && isRecord(object.List) ? object.List.items : undefined
    return Array.isArray(list) ? [joinName(nameParts(list))] : []
  })
}
