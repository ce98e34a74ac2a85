import { BusyError, DatabaseError, InvalidInputError } from '../../errors.js'
import type { Tx } from '../../postgres/executor.js'
import { statement } from '../../postgres/statement.js'
import { textArray } from '../../postgres/text-values.js'
import type { Rows } from '../row-executor.js'
import { ROW } from '../sql-values.js'
import type { AggregateSql } from './aggregate-sql.js'
import { differsSql } from './total-column.js'

const check = statement(
  'select {schema}.aggregate_check_statements($1::text::text[], $2::text::integer)::text as answers',
)

/**
 * Checks each expression with the server separately, so that an error names the wrong one. Keeps the caller's transaction
 * usable.
 */
export async function checkExpressions(
  rows: Rows,
  tx: Tx | undefined,
  sql: AggregateSql,
  isStored: boolean,
  waitMs: number,
): Promise<void> {
  const { columns, name } = sql.spec
  const startedAt = performance.now()
  const [row] = await rows.send(check, [textArray(checksOf(sql, isStored)), String(Math.max(1, waitMs))], tx)
  const answers: readonly (string | null)[] = JSON.parse(`${row?.answers}`)
  if (answers.some((answer) => answer?.startsWith('55P03 ')))
    throw new BusyError(
      `the tables of aggregate "${name}"`,
      waitMs === 0 ? 0 : performance.now() - startedAt,
      100,
    )
  // A missing right says nothing about the expression.
  const forbidden = answers.find((answer) => answer?.startsWith('42501 '))
  if (forbidden) throw new DatabaseError(`PostgreSQL answered ${forbidden.replace(' ', ': ')}`, '42501')
  for (const [n, [column, expression]] of columns.entries()) {
    const [count, plan] = [answers[2 * n], answers[2 * n + 1]]
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

/** The answer is the plan, or an error that begins with its SQLSTATE. */
const readProblem = (plan: string | null | undefined): string | undefined =>
  plan && /^[0-9A-Z]{5} /.test(plan) ? plan : undefined

/** Two statements for each expression, which check it separately. See `aggregate_check_statements`. */
function checksOf(sql: AggregateSql, isStored: boolean): readonly string[] {
  const totals = isStored ? sql.totals : []
  return sql.spec.columns.flatMap(([, expression], n) => {
    const alone = `select (${expression}\n) as "dibs_${n}" from ${sql.child.quoted}`
    const column = totals[n]
    return [
      // Over no rows, an aggregate has one result row, and any other expression has none.
      `select pg_catalog.count(*)::text from (${alone} where false) as "dibs_d"`,
      column === undefined
        ? 'select null::text'
        : `explain update ${sql.parent.quoted} as ${ROW} set ${column.column.quoted} = ${column.value} from (${alone}) as "dibs_d" where ${differsSql(column)}`,
    ]
  })
}
