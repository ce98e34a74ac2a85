import { TEST_MARK } from '../../../postgres/migrations/yield-points.js'

/** One function that a statement reaches. */
export interface FoundFunction {
  /** The name under which a statement calls it, or null for the function of a trigger. */
  readonly requested: string | null
  /** As PostgreSQL writes it: `app.take(text)`. */
  readonly name: string
  readonly proname: string
  readonly isBuiltIn: boolean
  /** The schema that Dibs installed this function in, or null for a function of the user. */
  readonly dibsSchema: string | null
  /** True if `createTestSchema` made that schema, so that its functions have yield points. */
  readonly isTestSchema: boolean
  readonly isVolatile: boolean
  readonly language: string
  /** Null for functions in C. */
  readonly source: string | null
}

/**
 * Finds functions by name ($1), and the functions of triggers on tables by name ($2). Also finds the functions that these
 * call in turn, by words before a parenthesis in their sources. A name without a schema means the function that the control
 * connection sees. If that sees none, it means every function of that name, since an actor may have another search_path. The
 * query reads catalogs alone; a loop of calls ends because `union` drops duplicates. Triggers of foreign keys are included, and are
 * built in. A schema of Dibs is recognized by its table of applied migrations.
 */
export const FUNCTION_LOOK_UP = `
with recursive built_in as (
  select oid from pg_catalog.pg_namespace where nspname in ('pg_catalog', 'information_schema')
), dibs as (
  select n.oid, n.nspname, pg_catalog.obj_description(n.oid, 'pg_namespace') as comment
  from pg_catalog.pg_class c
  join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attname = 'compatible_from'
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where c.relname = 'migration' and c.relkind = 'r'
), requested as (
  select name, parts[cardinality(parts)] as proname, parts[cardinality(parts) - 1] as nspname
  from unnest($1::text[]) name, lateral pg_catalog.parse_ident(name) parts
), candidate as (
  select a.name, f.oid, a.nspname is not null or pg_catalog.pg_function_is_visible(f.oid) as is_meant
  from requested a
  join pg_catalog.pg_proc f on f.proname = a.proname
  join pg_catalog.pg_namespace n on n.oid = f.pronamespace
  where a.nspname is null or a.nspname = n.nspname
), written as (
  select name, parts[cardinality(parts)] as relname, parts[cardinality(parts) - 1] as nspname
  from unnest($2::text[]) name, lateral pg_catalog.parse_ident(name) parts
), relation as (
  select w.name, c.oid, w.nspname is not null or pg_catalog.pg_table_is_visible(c.oid) as is_meant
  from written w
  join pg_catalog.pg_class c on c.relname = w.relname
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where w.nspname is null or w.nspname = n.nspname
), reached (requested, oid) as (
  select name, oid from candidate c
  where is_meant or not exists (select from candidate o where o.name = c.name and o.is_meant)
  union
  select null, t.tgfoid
  from relation r
  join pg_catalog.pg_trigger t on t.tgrelid = r.oid and t.tgenabled in ('O', 'A')
  where r.is_meant or not exists (select from relation o where o.name = r.name and o.is_meant)
  union
  select r.requested, callee.oid
  from reached r
  join pg_catalog.pg_proc f on f.oid = r.oid and f.pronamespace not in (select oid from built_in)
  cross join lateral pg_catalog.regexp_matches(
    coalesce(pg_catalog.pg_get_function_sqlbody(f.oid), f.prosrc),
    '(?:([\\w$]+)"?\\s*\\.\\s*"?)?([\\w$]+)"?\\s*\\(', 'g') word
  join pg_catalog.pg_proc callee on callee.proname in (word[2], lower(word[2]))
  join pg_catalog.pg_namespace n on n.oid = callee.pronamespace
  where n.nspname in (word[1], lower(word[1]))
     or word[1] is null
        and (callee.pronamespace = f.pronamespace or pg_catalog.pg_function_is_visible(callee.oid))
)
select r.requested, f.oid::pg_catalog.regprocedure::text as name, f.proname, l.lanname as language,
       f.pronamespace in (select oid from built_in) as "isBuiltIn", f.provolatile = 'v' as "isVolatile",
       d.nspname as "dibsSchema", coalesce(d.comment = '${TEST_MARK}', false) as "isTestSchema",
       case when l.lanname not in ('c', 'internal') then
         coalesce(pg_catalog.pg_get_function_sqlbody(f.oid), f.prosrc) end as source
from reached r
join pg_catalog.pg_proc f on f.oid = r.oid
join pg_catalog.pg_language l on l.oid = f.prolang
left join dibs d on d.oid = f.pronamespace`

/** Finds out whether the database has triggers, views or policies, which may run functions that no statement names. */
export const HIDDEN_CODE = `
select exists (select from pg_catalog.pg_trigger where not tgisinternal)
    or exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
               where (c.relkind in ('v', 'f', 'p') or c.relrowsecurity)
                 and n.nspname not in ('pg_catalog', 'information_schema')) as has`

/** Tells which of the tables $1 may run functions on a read: views, foreign and partitioned tables, tables with policies. */
export const TABLE_LOOK_UP = `
select name, bool_or(c.relkind in ('v', 'f', 'p') or c.relrowsecurity) as hides
from unnest($1::text[]) name, lateral pg_catalog.parse_ident(name) parts
join pg_catalog.pg_class c on c.relname = parts[cardinality(parts)]
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname not in ('pg_catalog', 'information_schema')
  and (cardinality(parts) = 1 or n.nspname = parts[cardinality(parts) - 1])
group by name`

/** Finds those of the names $1 that only PostgreSQL's own functions have. */
export const BUILT_IN_LOOK_UP = `
select f.proname::text as name, bool_or(f.provolatile = 'v') as "isVolatile"
from pg_catalog.pg_proc f
where f.proname = any ($1::text[])
group by f.proname
having bool_and(f.pronamespace = 'pg_catalog'::regnamespace)`

/**
 * Finds code of the user that runs without a function call: operators, casts, and domains, which may have a check.
 * Operators and casts of extensions are harmless.
 */
export const USER_CODE = `
select distinct o.oprname::text as name, true as "isOperator"
from pg_catalog.pg_operator o
where o.oprnamespace <> 'pg_catalog'::regnamespace
  and not exists (
    select from pg_catalog.pg_depend d
    where d.classid = 'pg_catalog.pg_operator'::regclass and d.objid = o.oid and d.deptype = 'e')
union all
select t.typname::text, false
from pg_catalog.pg_type t
where t.typtype = 'd' and t.typnamespace <> 'information_schema'::regnamespace
  or exists (
    select from pg_catalog.pg_cast c
    join pg_catalog.pg_proc f on f.oid = c.castfunc and f.pronamespace <> 'pg_catalog'::regnamespace
    where c.casttarget = t.oid and not exists (
      select from pg_catalog.pg_depend d
      where d.classid = 'pg_catalog.pg_cast'::regclass and d.objid = c.oid and d.deptype = 'e'))`
