import { BusyError, DatabaseError, InvalidInputError } from '../errors.js'
import type { Tx } from '../postgres/executor.js'
import { ROW } from '../postgres/rows/row-args.js'
import type { Rows } from '../postgres/rows/rows.js'
import { statement } from '../postgres/statement.js'
import { textArray } from '../postgres/text-values.js'
import type { AggregateSql } from './aggregate-sql.js'
import { differ } from './kept-column.js'

const check = statement('select {schema}.aggregate_check($1::text::text[], $2::text::integer)::text as told')

/** Asks the server about each expression by itself, so that an error names the one that is wrong; a transaction lives on. */
export async function checkExpressions(
  rows: Rows,
  tx: Tx | undefined,
  sql: AggregateSql,
  isKept: boolean,
  waitMs: number,
): Promise<void> {
  const { columns, name } = sql.spec
  const startedAt = performance.now()
  const [row] = await rows.send(check, [textArray(checksOf(sql, isKept)), String(Math.max(1, waitMs))], tx)
  const told: readonly (string | null)[] = JSON.parse(`${row?.told}`)
  if (told.some((answer) => answer?.startsWith('55P03 ')))
    throw new BusyError(
      `the tables of aggregate "${name}"`,
      waitMs === 0 ? 0 : performance.now() - startedAt,
      100,
    )
  // Nothing is wrong with the expression.
  const forbidden = told.find((answer) => answer?.startsWith('42501 '))
  if (forbidden) throw new DatabaseError(`PostgreSQL answered ${forbidden.replace(' ', ': ')}`, '42501')
  for (const [n, [column, expression]] of columns.entries()) {
    const [count, plan] = [told[2 * n], told[2 * n + 1]]
    const field = `columns.${column}`
    if (count === '0')
      throw new InvalidInputError(
        field,
        `must be an aggregate, such as count(*) or coalesce(sum(amount), 0), which has an answer for no rows, too; ${JSON.stringify(expression)} has none`,
      )
    const problem = count === '1' ? readProblem(plan) : count
    if (problem !== null && problem !== undefined)
      throw new InvalidInputError(
        field,
        `is not a valid expression over the rows of the child table: PostgreSQL answered ${problem.replace(' ', ': ')}`,
      )
  }
}

/** A plan is an answer too. */
const readProblem = (plan: string | null | undefined): string | undefined =>
  plan && /^[0-9A-Z]{5} /.test(plan) ? plan : undefined

/** Statements that ask whether each expression can be, by itself: two for each. See `aggregate_check`. */
function checksOf(sql: AggregateSql, isKept: boolean): readonly string[] {
  const kept = isKept ? sql.kept : []
  return sql.spec.columns.flatMap(([, expression], n) => {
    const alone = `select (${expression}\n) as "dibs_${n}" from ${sql.child.quoted}`
    const column = kept[n]
    return [
      // Over no rows an aggregate has one answer, and everything else none.
      `select pg_catalog.count(*)::text from (${alone} where false) as "dibs_d"`,
      column === undefined
        ? 'select null::text'
        : `explain update ${sql.parent.quoted} as ${ROW} set ${column.column.quoted} = ${column.value} from (${alone}) as "dibs_d" where ${differ(column)}`,
    ]
  })
}
