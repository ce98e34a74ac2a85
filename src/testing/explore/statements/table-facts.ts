import type { ClientBase } from 'pg'

export interface Column {
  readonly name: string
  readonly type: string
  readonly isNotNull: boolean
  /** It tells when, and so what came first. */
  readonly isTime: boolean
  /** Equal texts are equal values, and other texts other values. */
  readonly isPlain: boolean
  /** Longer texts are cut, or refused. */
  readonly most: number | null
  /** Computed of others. */
  readonly isGenerated: boolean
  /** Sequences that its default draws from. */
  readonly sequences: readonly string[]
  /** What a row that does not name it gets: nothing, something nobody else has, or something. */
  readonly default: 'null' | 'fresh' | 'some'
}

export interface UniqueIndex {
  readonly name: string
  readonly isPrimary: boolean
  /** Null where they are expressions, or hold for some rows only. */
  readonly columns: readonly string[] | null
}

export interface ForeignKey {
  readonly columns: readonly string[]
  readonly table: string
  readonly schema: string
  /** It points to the primary key, in its order of columns. */
  readonly isToPrimary: boolean
}

/** What the catalog says of a table that a statement's text does not. */
export interface TableFacts {
  /** Undefined: it may be in one or in another. */
  readonly schema?: string | undefined
  /** A statement on it may do what nobody can foresee, because … */
  readonly opaque?: string | undefined
  /** The same, if the statement writes. */
  readonly opaqueWrites?: string | undefined
  readonly columns: readonly Column[]
  readonly uniques: readonly UniqueIndex[]
  readonly foreignKeys: readonly ForeignKey[]
  /** Columns that other tables point to, and one of those tables. */
  readonly referenced: { readonly columns: readonly string[]; readonly by: string } | null
}

interface FoundTable {
  readonly name: string
  readonly schema: string
  readonly isVisible: boolean
  readonly kind: string
  readonly hasPolicies: boolean
  readonly isInherited: boolean
  readonly trigger: string | null
  readonly rule: string | null
  readonly function: string | null
  readonly isDeferrable: boolean
  readonly columns: readonly Column[]
  readonly uniques: readonly UniqueIndex[]
  readonly foreignKeys: readonly ForeignKey[]
  readonly referenced: TableFacts['referenced']
}

/** The last part of a name as `tree-names` writes it. */
export function bareName(name: string): string {
  const quoted = /"((?:[^"]|"")*)"$/.exec(name)?.[1]
  return quoted === undefined ? (name.split('.').at(-1) as string) : quoted.replaceAll('""', '"')
}

function schemaOf(name: string): string | undefined {
  const rest = name.slice(0, /(?:"(?:[^"]|"")*"|[^."]*)$/.exec(name)?.index ?? 0)
  return rest === '' ? undefined : bareName(rest.slice(0, -1))
}

/** Remembers what it has asked. */
export class TableBook {
  readonly #control: Pick<ClientBase, 'query'>
  /** Actors may have another search_path than the connection that asks. */
  readonly #isPathKnown: boolean
  readonly #facts = new Map<string, TableFacts>()

  constructor(control: Pick<ClientBase, 'query'>, isPathKnown: boolean) {
    this.#control = control
    this.#isPathKnown = isPathKnown
  }

  knows(name: string): boolean {
    return this.#facts.has(name)
  }

  async learn(names: readonly string[]): Promise<void> {
    if (names.length === 0) return
    const { rows } = await this.#control.query<{ found: FoundTable }>(LOOK_UP, [names.map(bareName)])
    const found = rows.map((row) => row.found)
    for (const name of names) this.#facts.set(name, this.#choose(name, found))
  }

  of(name: string): TableFacts {
    return this.#facts.get(name) ?? opaque(`${name} is not known`)
  }

  forget(): void {
    this.#facts.clear()
  }

  #choose(name: string, all: readonly FoundTable[]): TableFacts {
    const schema = schemaOf(name)
    const named = all.filter((one) => one.name === bareName(name) && (!schema || one.schema === schema))
    const visible = schema === undefined && this.#isPathKnown ? named.filter((one) => one.isVisible) : []
    const [first, ...others] = (visible.length > 0 ? visible : named).map(factsOf)
    if (!first) return opaque(`${name} is not known`)
    if (others.length === 0) return first
    const [sign, ...signs] = [first, ...others].map((facts) => JSON.stringify({ ...facts, schema: null }))
    return signs.every((other) => other === sign)
      ? { ...first, schema: undefined }
      : opaque(`several tables are called ${name}`)
  }
}

const opaque = (why: string): TableFacts => ({
  opaque: why,
  columns: [],
  uniques: [],
  foreignKeys: [],
  referenced: null,
})

function factsOf(found: FoundTable): TableFacts {
  const { name, schema, kind, columns, uniques, foreignKeys, referenced } = found
  const why =
    kind === 'v'
      ? `${name} is a view`
      : kind === 'f'
        ? `${name} is a foreign table`
        : kind === 'p' || found.isInherited
          ? `${name} is made of several tables`
          : found.hasPolicies
            ? `${name} has row security policies`
            : undefined
  const writes =
    found.trigger !== null
      ? `${name} has the trigger ${found.trigger}`
      : found.rule !== null
        ? `${name} has the rule ${found.rule}`
        : found.function !== null
          ? `${name} uses ${found.function} for a default, a check or an index`
          : found.isDeferrable
            ? `${name} has a constraint that can be deferred to COMMIT`
            : undefined
  return { schema, opaque: why, opaqueWrites: writes, columns, uniques, foreignKeys, referenced }
}

/**
 * Built-in functions are pinned and have no entries in pg_depend: what is found there is the user's. Types whose
 * equality is that of their text: integers, uuid, and text unless its collation says otherwise.
 */
const LOOK_UP = `
with recursive asked as (
  select c.oid, c.relname, n.nspname, c.relkind, c.relrowsecurity
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  where c.relname = any ($1::text[]) and c.relkind in ('r', 'v', 'm', 'f', 'p')
), domain as (
  select a.attrelid, a.atttypid as oid from pg_catalog.pg_attribute a join asked t on t.oid = a.attrelid
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
      'isNotNull', a.attnotnull, 'isTime', y.typcategory = 'D' or coalesce(e.expression ~* 'timestamp|\\mnow\\M|xact|txid|uuidv7|timeofday', false),
      'most', case when y.typname = 'varchar' and a.atttypmod > 4 then a.atttypmod - 4 end,
      'isGenerated', a.attgenerated <> '',
      'isPlain', y.typnamespace = 'pg_catalog'::regnamespace and y.typname in ('int2', 'int4', 'int8', 'uuid', 'text', 'varchar')
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
from asked t
where t.nspname not in ('pg_catalog', 'information_schema')
order by t.nspname`
