import postgres from 'postgres'
import { describe, expect, it } from 'vitest'
import { describeConformance } from '../../../test/conformance/describe-conformance.js'
import { holdWhenLost } from '../../../test/conformance/hold-when-lost.js'
import { url, viaPgBouncer } from '../../../test/database.js'
import { NotInTransactionError } from '../../errors.js'
import { fromPostgresJs } from './from-postgres-js.js'

const openSql = (options: postgres.Options<Record<string, postgres.PostgresType>> = {}) =>
  postgres(url, { max: 1, prepare: !viaPgBouncer, onnotice: () => {}, ...options })

/** Renames columns, and gives undefined for null. */
const transform = { ...postgres.camel, value: { from: (value: unknown) => value ?? undefined } }

for (const [name, options] of Object.entries({ plain: {}, 'with transforms': { transform } })) {
  describeConformance(`a transaction of postgres.js, ${name}`, {
    adapt: fromPostgresJs,
    losesCommit: true, // postgres.js 3.4 may queue COMMIT behind such a statement and never send it, most often without prepared statements
    async open(schema) {
      const sql = openSql(options)
      return {
        transaction: (fn, isolation = undefined) =>
          sql.begin(`isolation level ${isolation ?? 'read committed'}`, (tx) =>
            holdWhenLost(
              fn({
                tx: fromPostgresJs(tx),
                insert: (id, label) => tx`insert into ${sql(schema)}.items values (${id}, ${label})`,
                savepoint: (inner) => tx.savepoint((nested) => inner(fromPostgresJs(nested))),
              }),
            ),
          ),
        impostors: { 'an `sql` of postgres.js that is no transaction': sql },
        close: () => sql.end({ timeout: 5 }),
      }
    },
  })
}

describe('fromPostgresJs', () => {
  it('refuses by type what is no transaction', async () => {
    const sql = openSql()
    // @ts-expect-error: no transaction
    expect(() => fromPostgresJs(sql)).toThrow(NotInTransactionError)
    await sql.end()
  })

  it.each([
    { name: 'toCamel', transform: postgres.toCamel },
    { name: 'pascal', transform: postgres.pascal },
    { name: 'kebab', transform: postgres.kebab },
  ])('keeps names under the transform $name', async ({ transform }) => {
    const sql = openSql({ transform })
    await sql.begin(async (tx) => {
      const { rows } = await fromPostgresJs(tx).query('select $1::text as a_name, 1 as other_name', ['x'])
      expect(rows).toEqual([{ a_name: 'x', other_name: 1 }])
    })
    await sql.end()
  })
})
