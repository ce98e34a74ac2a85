import type { Column, ForeignKey, TableInfo, UniqueIndex } from './schema-info.js'

/** One row of `TABLE_INFO_LOOK_UP`. */
export interface FoundTable {
  readonly name: string
  readonly schema: string
  readonly isVisible: boolean
  readonly kind: string
  readonly hasPolicies: boolean
  readonly isInherited: boolean
  readonly trigger: string | null
  readonly rule: string | null
  /** A function of the user that a default, a check or an index calls. */
  readonly function: string | null
  readonly isDeferrable: boolean
  readonly columns: readonly Column[]
  readonly uniques: readonly UniqueIndex[]
  readonly foreignKeys: readonly ForeignKey[]
  readonly referenced: TableInfo['referenced']
}

/**
 * Describes the tables with the names $1 in all schemas, one `FoundTable` per row. Built-in functions are pinned and have no
 * entries in pg_depend, so a function found there is the user's. `hasTextEquality` holds for integers, uuid, and text with a
 * deterministic collation.
 */
export const TABLE_INFO_LOOK_UP = `
with recursive requested as (
  select c.oid, c.relname, n.nspname, c.relkind, c.relrowsecurity
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where c.relname = any ($1::text[]) and c.relkind in ('r', 'v', 'm', 'f', 'p')
), domain as (
  select a.attrelid, a.atttypid as oid from pg_catalog.pg_attribute a join requested t on t.oid = a.attrelid
  union
  select d.attrelid, y.typbasetype from domain d join pg_catalog.pg_type y on y.oid = d.oid and y.typtype = 'd'
)
select json_build_object(
  'name', t.relname, 'schema', t.nspname, 'isVisible', pg_catalog.pg_table_is_visible(t.oid), 'kind', t.relkind,
  'hasPolicies', t.relrowsecurity,
  'isInherited', exists (select from pg_catalog.pg_inherits where t.oid in (inhrelid, inhparent)),
  'trigger', (select min(tgname::text) from pg_catalog.pg_trigger where tgrelid = t.oid and not tgisinternal),
  'rule', (select min(rulename::text) from pg_catalog.pg_rewrite where ev_class = t.oid and ev_type <> '1'),
  'function', (
    select min(coalesce(f.proname, o.oprname)::text) from pg_catalog.pg_depend d
    left join pg_catalog.pg_proc f on d.refclassid = 'pg_catalog.pg_proc'::regclass and f.oid = d.refobjid
    left join pg_catalog.pg_operator o on d.refclassid = 'pg_catalog.pg_operator'::regclass and o.oid = d.refobjid
    where coalesce(f.oid, o.oid) is not null and (
      d.classid = 'pg_catalog.pg_attrdef'::regclass
        and d.objid in (select oid from pg_catalog.pg_attrdef where adrelid = t.oid)
      or d.classid = 'pg_catalog.pg_constraint'::regclass
        and d.objid in (select oid from pg_catalog.pg_constraint where conrelid = t.oid)
      or d.classid = 'pg_catalog.pg_constraint'::regclass
        and d.objid in (
          select c.oid from pg_catalog.pg_constraint c join domain m on m.oid = c.contypid and m.attrelid = t.oid)
      or d.classid = 'pg_catalog.pg_class'::regclass
        and d.objid in (select indexrelid from pg_catalog.pg_index where indrelid = t.oid))),
  'isDeferrable', exists (select from pg_catalog.pg_constraint where t.oid in (conrelid, confrelid) and condeferrable),
  'columns', coalesce((
    select json_agg(json_build_object(
      'name', a.attname, 'type', y.typname,
      'isNotNull', a.attnotnull, 'isTemporal', y.typcategory = 'D' or coalesce(e.expression ~* 'timestamp|\\mnow\\M|xact|txid|uuidv7|timeofday', false),
      'maxLength', case when y.typname = 'varchar' and a.atttypmod > 4 then a.atttypmod - 4 end,
      'isGenerated', a.attgenerated <> '',
      'hasTextEquality', y.typnamespace = 'pg_catalog'::regnamespace and y.typname in ('int2', 'int4', 'int8', 'uuid', 'text', 'varchar')
        and (a.atttypmod = -1 or y.typname = 'varchar')
        and coalesce((select collisdeterministic from pg_catalog.pg_collation l where l.oid = a.attcollation), true),
      'sequences', (
        select coalesce(json_agg(distinct s.relname), '[]') from pg_catalog.pg_depend d
        join pg_catalog.pg_class s on s.oid = d.objid and s.relkind = 'S'
        where d.refclassid = 'pg_catalog.pg_class'::regclass and d.refobjid = t.oid and d.refobjsubid = a.attnum
            and d.deptype in ('a', 'i') and not exists (
              select from pg_catalog.pg_attrdef n where n.adrelid = t.oid and n.adnum = a.attnum)
          or s.oid in (
            select n.refobjid from pg_catalog.pg_depend n
            join pg_catalog.pg_attrdef e on e.oid = n.objid
            where n.classid = 'pg_catalog.pg_attrdef'::regclass and n.refclassid = 'pg_catalog.pg_class'::regclass
              and e.adrelid = t.oid and e.adnum = a.attnum)),
      'default', case
        when a.attidentity <> '' or a.attgenerated <> '' or y.typtype = 'd' then 'some'
        when e.expression is null then 'null'
        when e.expression in ('gen_random_uuid()', 'uuidv4()', 'uuidv7()') then 'fresh'
        else 'some' end
    ) order by a.attnum)
    from pg_catalog.pg_attribute a
    join pg_catalog.pg_type y on y.oid = a.atttypid
    left join lateral (
      select pg_catalog.pg_get_expr(adbin, adrelid) as expression from pg_catalog.pg_attrdef
      where adrelid = t.oid and adnum = a.attnum) e on true
    where a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped), '[]'),
  'uniques', coalesce((
    select json_agg(json_build_object(
      'name', c.relname, 'isPrimary', i.indisprimary,
      'columns', case when i.indexprs is null and i.indpred is null and not i.indisexclusion
        and not coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
        and not exists (
          select from pg_catalog.pg_attribute g
          where g.attrelid = t.oid and g.attgenerated <> '' and g.attnum = any (i.indkey::int2[]))
        and not exists (
          select from pg_catalog.pg_collation l
          where l.oid = any (i.indcollation::oid[]) and not l.collisdeterministic) then (
        select json_agg(a.attname order by k.n)
        from unnest(i.indkey::int2[]) with ordinality k (attnum, n)
        join pg_catalog.pg_attribute a on a.attrelid = t.oid and a.attnum = k.attnum
        where k.n <= i.indnkeyatts) end
    ) order by c.relname)
    from pg_catalog.pg_index i
    join pg_catalog.pg_class c on c.oid = i.indexrelid
    where i.indrelid = t.oid and (i.indisunique or i.indisexclusion)), '[]'),
  'foreignKeys', coalesce((
    select json_agg(json_build_object(
      'columns', (
        select json_agg(a.attname order by k.n) from unnest(c.conkey) with ordinality k (attnum, n)
        join pg_catalog.pg_attribute a on a.attrelid = t.oid and a.attnum = k.attnum),
      'table', (select relname from pg_catalog.pg_class where oid = c.confrelid),
      'schema', (
        select n.nspname from pg_catalog.pg_class p join pg_catalog.pg_namespace n on n.oid = p.relnamespace
        where p.oid = c.confrelid),
      'isToPrimary', exists (
        select from pg_catalog.pg_index i
        where i.indexrelid = c.conindid and i.indisprimary
          and i.indkey::text = pg_catalog.array_to_string(c.confkey, ' '))
    ) order by c.conname)
    from pg_catalog.pg_constraint c where c.conrelid = t.oid and c.contype = 'f'), '[]'),
  'referenced', (
    select json_build_object(
      'columns', json_agg(distinct a.attname), 'by', min(c.conrelid::regclass::text))
    from pg_catalog.pg_constraint c
    cross join unnest(c.confkey) k (attnum)
    join pg_catalog.pg_attribute a on a.attrelid = t.oid and a.attnum = k.attnum
    where c.confrelid = t.oid and c.contype = 'f'
    having count(*) > 0)
) as found
from requested t
where t.nspname not in ('pg_catalog', 'information_schema')
order by t.nspname`
