import { ROW } from '../postgres/rows/row-args.js'
import { type AggregateSql, IDS, quoteText } from './aggregate-sql.js'
import { exactText } from './exact-text.js'

/**
 * Those that are not what their children say, and that nobody has marked: each with what it was and what it is to be; counted anew, or as they are. One that was written and is not what it was
 * to be, or was not written, is `kept`.
 *
 * The marks are read by the statement that counts: one that came later would be of a child that was counted. And each once, by all together, since there may be a million.
 */
export function driftedSql(sql: AggregateSql, { repairs }: { readonly repairs: boolean }): string {
  const keys = sql.key.map((_, n) => `${sql.part('"dibs_i"', n)} as "dibs_k${n}"`)
  const marked = `"dibs_m" as materialized (
    select ${keys.join(', ')} from (select distinct "dibs_a"."dibs_id" from ${sql.schema}.aggregate_mark as "dibs_a"("dibs_aggregate", "dibs_parent", "dibs_seq", "dibs_id")
      where "dibs_a"."dibs_aggregate" operator(pg_catalog.=) ${quoteText(sql.spec.name)}
        and "dibs_a"."dibs_parent" operator(pg_catalog.=) pg_catalog.to_regclass(${quoteText(sql.parent.quoted)})::pg_catalog.oid) as "dibs_i")`
  const found = `"dibs_c" as materialized (
    select "dibs_g".*, "dibs_d".*, ${told(sql)} as "dibs_told"
    from ${sql.givenCounted} join ${sql.parent.quoted} as ${ROW} on ${sql.match('"dibs_g"')}
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
  select ${repairs ? `case when ${isWritten} then 'drifted' else 'kept' end` : `'drifted'`}::text, "dibs_d"."dibs_told", ${sql.parent.list(`${ROW}.`)}
  from "dibs_c" as "dibs_d" join ${sql.parent.quoted} as ${ROW} on ${sql.match('"dibs_d"')} order by ${sql.order}`
}

/**
 * The next so many parents, behind an id if one is given: those that are not what their children say (`suspect`), and the last of them (`last`), each with its id
 * and how many there were.
 */
export function pageSql(sql: AggregateSql, isBehind: boolean, limit: number): string {
  const where = isBehind ? ` where ${behind(sql)}` : ''
  const [place, count] = ['dibs_place', 'dibs_count'].map((name) => `"${sql.parent.freeName(name)}"`)
  const keys = sql.key.map(({ quoted }, n) => `"dibs_p".${quoted} as "dibs_k${n}"`)
  const differs = sql.differs
  return `with "dibs_p" as materialized (
    select "dibs_p".*, pg_catalog.row_number() over () as ${place}, pg_catalog.count(*) over () as ${count}
    from (select ${ROW}.* from ${sql.parent.quoted} as ${ROW}${where} order by ${sql.order} limit ${limit}) as "dibs_p")
  select case when ${differs} then 'suspect' else 'last' end::text,
    pg_catalog.json_build_object('id', ${exactId(sql)}, 'count', ${ROW}.${count})::pg_catalog.text,
    ${sql.parent.list(`${ROW}.`)}
  from (select "dibs_p".${place} as "dibs_n", ${keys.join(', ')} from "dibs_p") as "dibs_g"
  cross join lateral ${sql.counted(sql.givenKey)} as "dibs_d"
  join "dibs_p" as ${ROW} on ${ROW}.${place} operator(pg_catalog.=) "dibs_g"."dibs_n"
  where ${differs} or ${ROW}.${place} operator(pg_catalog.=) ${ROW}.${count} order by ${ROW}.${place}`
}

/** The parent behind that id, or the first, whatever its children say. */
export function nextSql(sql: AggregateSql, isBehind: boolean): string {
  return `select 'suspect'::text, pg_catalog.json_build_object('id', ${exactId(sql)}, 'count', 1)::pg_catalog.text, ${sql.parent.list(`${ROW}.`)}
  from ${sql.parent.quoted} as ${ROW}${isBehind ? ` where ${behind(sql)}` : ''} order by ${sql.order} limit 1`
}

/** The parents with these ids that this role can read, and can not lock though nobody else has: a policy keeps them. Fails where somebody has. */
export function keptSql(sql: AggregateSql): string {
  return `select 'kept'::text, null::text, ${sql.parent.list(`${ROW}.`)} from ${IDS} join ${sql.parent.quoted} as ${ROW} on ${sql.match('"dibs_i"')}
    where not exists (${sql.locking('1', ' nowait')})`
}

/** The id of a parent as a text, such that it is no other's and no setting of a session changes it; see `readExactId`. */
function exactId({ key }: AggregateSql): string {
  const texts = key.map((column) => exactText(column, `${ROW}.${column.quoted}`))
  return `pg_catalog.json_build_array(${texts.join(', ')})::pg_catalog.text`
}

/** What it keeps, and what its children say. */
function told({ kept }: AggregateSql): string {
  const columns = kept.map(
    ({ column, stored }) =>
      `${quoteText(column.name)}, pg_catalog.json_build_object('stored', ${ROW}.${column.quoted}::pg_catalog.text, 'derived', (${stored})::pg_catalog.text)`,
  )
  return `pg_catalog.json_build_object(${columns.join(', ')})::pg_catalog.text`
}

/** Behind the one id that is given, in the order of the key. */
function behind(sql: AggregateSql): string {
  const parts = sql.key.map(({ quoted, equals }, n) => {
    const given = sql.first(n)
    const compare = (sign: string): string => `${ROW}.${quoted} ${equals.replace('=)', `${sign})`)} ${given}`
    return { isMore: compare('>'), isSame: compare('='), isNotLess: compare('>=') }
  })
  const later = parts.reduceRight(
    (rest, { isMore, isSame }) => `${isMore} or ${isSame} and (${rest})`,
    'false',
  )
  return `${parts[0]?.isNotLess} and (${later})`
}
