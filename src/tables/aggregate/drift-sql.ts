import { exactText } from '../exact-text.js'
import { ROW } from '../sql-values.js'
import { type AggregateSql, IDS, quoteText } from './aggregate-sql.js'

/**
 * Finds the unmarked parents whose totals differ from their children, each with the stored and the derived totals. With
 * `repairs`, also recomputes them. `kept` marks a parent that was not written, or differs again after the write.
 *
 * The statement that counts also reads the marks: a later mark may be about a child that was counted. The marks are read once
 * for all parents, because there may be a million.
 */
export function driftedSql(sql: AggregateSql, { repairs }: { readonly repairs: boolean }): string {
  const keys = sql.key.map((_, n) => `${sql.keyPart('"dibs_i"', n)} as "dibs_k${n}"`)
  const marked = `"dibs_m" as materialized (
    select ${keys.join(', ')} from (select distinct "dibs_a"."dibs_id" from ${sql.schema}.aggregate_mark as "dibs_a"("dibs_aggregate", "dibs_parent", "dibs_seq", "dibs_id")
      where "dibs_a"."dibs_aggregate" operator(pg_catalog.=) ${quoteText(sql.spec.name)}
        and "dibs_a"."dibs_parent" operator(pg_catalog.=) pg_catalog.to_regclass(${quoteText(sql.parent.quoted)})::pg_catalog.oid) as "dibs_i")`
  const found = `"dibs_c" as materialized (
    select "dibs_g".*, "dibs_d".*, ${derivedColumns(sql)} as "dibs_detail"
    from ${sql.requestedTotals} join ${sql.parent.quoted} as ${ROW} on ${sql.match('"dibs_g"')}
    left join "dibs_m" on ${sql.match('"dibs_m"')}
    where case when "dibs_m"."dibs_k0" is not null then false else ${sql.differs} end)`
  const written = repairs
    ? `,
  "dibs_w" as (
    update ${sql.parent.quoted} as ${ROW} set ${sql.sets} from "dibs_c" as "dibs_d" where ${sql.match('"dibs_d"')}
    returning "dibs_d"."dibs_id", (${sql.differs}) as "dibs_wrong")`
    : ''
  const isWritten = `exists (select from "dibs_w" where "dibs_w"."dibs_id" operator(pg_catalog.=) "dibs_d"."dibs_id" and not "dibs_w"."dibs_wrong")`
  return `with ${marked}, ${found}${written}
  select ${repairs ? `case when ${isWritten} then 'drifted' else 'kept' end` : `'drifted'`}::text, "dibs_d"."dibs_detail", ${sql.parent.list(`${ROW}.`)}
  from "dibs_c" as "dibs_d" join ${sql.parent.quoted} as ${ROW} on ${sql.match('"dibs_d"')} order by ${sql.order}`
}

/**
 * Reads the next `limit` parents after an id, or the first ones. Returns those whose totals differ from their children
 * (`suspect`) and the last parent (`last`), each with its id and the number of parents read.
 */
export function pageSql(sql: AggregateSql, hasStart: boolean, limit: number): string {
  const where = hasStart ? ` where ${afterId(sql)}` : ''
  const [place, count] = ['dibs_place', 'dibs_count'].map((name) => `"${sql.parent.unusedName(name)}"`)
  const keys = sql.key.map(({ quoted }, n) => `"dibs_p".${quoted} as "dibs_k${n}"`)
  const differs = sql.differs
  return `with "dibs_p" as materialized (
    select "dibs_p".*, pg_catalog.row_number() over () as ${place}, pg_catalog.count(*) over () as ${count}
    from (select ${ROW}.* from ${sql.parent.quoted} as ${ROW}${where} order by ${sql.order} limit ${limit}) as "dibs_p")
  select case when ${differs} then 'suspect' else 'last' end::text,
    pg_catalog.json_build_object('id', ${exactId(sql)}, 'count', ${ROW}.${count})::pg_catalog.text,
    ${sql.parent.list(`${ROW}.`)}
  from (select "dibs_p".${place} as "dibs_n", ${keys.join(', ')} from "dibs_p") as "dibs_g"
  cross join lateral ${sql.countChildren(sql.requestedKey)} as "dibs_d"
  join "dibs_p" as ${ROW} on ${ROW}.${place} operator(pg_catalog.=) "dibs_g"."dibs_n"
  where ${differs} or ${ROW}.${place} operator(pg_catalog.=) ${ROW}.${count} order by ${ROW}.${place}`
}

/** The next parent after the id, or the first one, whether its totals differ or not. */
export function nextSql(sql: AggregateSql, hasStart: boolean): string {
  return `select 'suspect'::text, pg_catalog.json_build_object('id', ${exactId(sql)}, 'count', 1)::pg_catalog.text, ${sql.parent.list(`${ROW}.`)}
  from ${sql.parent.quoted} as ${ROW}${hasStart ? ` where ${afterId(sql)}` : ''} order by ${sql.order} limit 1`
}

/**
 * The parents with these ids that this role can read but cannot lock, although no session has locked them: a policy forbids it.
 * Fails if a session has locked one.
 */
export function unlockableSql(sql: AggregateSql): string {
  return `select 'kept'::text, null::text, ${sql.parent.list(`${ROW}.`)} from ${IDS} join ${sql.parent.quoted} as ${ROW} on ${sql.match('"dibs_i"')}
    where not exists (${sql.lockSql('1', ' nowait')})`
}

/** The id of a parent as unambiguous text that no session setting changes; see `readExactId`. */
function exactId({ key }: AggregateSql): string {
  const texts = key.map((column) => exactText(column, `${ROW}.${column.quoted}`))
  return `pg_catalog.json_build_array(${texts.join(', ')})::pg_catalog.text`
}

/** The stored totals, and the totals that the children give. */
function derivedColumns({ totals }: AggregateSql): string {
  const columns = totals.map(
    ({ column, stored }) =>
      `${quoteText(column.name)}, pg_catalog.json_build_object('stored', ${ROW}.${column.quoted}::pg_catalog.text, 'derived', (${stored})::pg_catalog.text)`,
  )
  return `pg_catalog.json_build_object(${columns.join(', ')})::pg_catalog.text`
}

/** True for keys after the one id in `$1`, in the order of the key. */
function afterId(sql: AggregateSql): string {
  const parts = sql.key.map(({ quoted, equals }, n) => {
    const value = sql.firstKeyPart(n)
    const compare = (sign: string): string => `${ROW}.${quoted} ${equals.replace('=)', `${sign})`)} ${value}`
    return { isMore: compare('>'), isSame: compare('='), isNotLess: compare('>=') }
  })
  const later = parts.reduceRight(
    (rest, { isMore, isSame }) => `${isMore} or ${isSame} and (${rest})`,
    'false',
  )
  return `${parts[0]?.isNotLess} and (${later})`
}
