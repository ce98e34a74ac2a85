import { advisoryKey } from '../footprint/advisory-locks.js'
import { constantOf, type Values } from '../footprint/key-values.js'
import type { Statement } from '../statements/parse-statements.js'
import { isRecord, lastPart, listOf, nodesOf } from '../statements/parse-tree.js'
import type { SchemaInfo } from '../statements/schema-info.js'
import { type ReadShape, readShapesOf } from './read-shape.js'
import { type WriteShape, writeShapeOf } from './write-shape.js'

/**
 * The reads and writes that a statement certainly does. A footprint is an upper bound, which is right for a search. To name
 * an anomaly, everything uncertain must be left out.
 */
export interface StatementShape {
  readonly reads: readonly ReadShape[]
  readonly write?: WriteShape | undefined
  /** The keys of the advisory locks that the statement releases, as in footprints. */
  readonly unlocks: readonly string[]
}

/** The shape of a statement; undefined if the statement is not understood. */
export function shapeOf(
  { tree }: Statement,
  values: Values,
  schemaInfo: SchemaInfo,
): StatementShape | undefined {
  const [kind = '', node] = isRecord(tree) ? (Object.entries(tree)[0] ?? []) : []
  if (!isRecord(node) || node.withClause !== undefined || node.op === 'SETOP_UNION') return undefined
  const write = writeShapeOf(kind, node, values, schemaInfo)
  if (write === undefined && kind !== 'SelectStmt') return undefined
  return { reads: readShapesOf(tree, values, schemaInfo), write, unlocks: unlocksIn(tree, values) }
}

const unlocksIn = (tree: unknown, values: Values): string[] =>
  nodesOf(tree, 'FuncCall')
    .filter(({ funcname }) => lastPart(funcname) === 'pg_advisory_unlock')
    .flatMap(({ args }) => advisoryKey(listOf(args).map((argument) => constantOf(argument, values))) ?? [])
