import { InvalidInputError } from '../../errors.js'
import type { Database } from '../database.js'
import type { Tx } from '../executor.js'
import { quoteIdentifier } from '../identifier.js'
import { offerNames } from '../nearest-name.js'
import { statement } from '../statement.js'
import { type Column, type ColumnType, Table } from './table.js'
import { readTableName, type TableName } from './table-name.js'

/** The most that a row may have beside what is told of it: 1,600 is the server's own bound. */
const MAX_COLUMNS = 1_590

/** More tables than this are not kept in mind: the one that was read first is read again. */
const MAX_TABLES = 1_000

interface ToldType {
  readonly sql: string
  readonly base: string | null
  readonly labels: readonly string[] | null
  readonly typmod: number
}

interface ToldColumn extends ToldType {
  readonly name: string
  readonly nullable: boolean
  readonly generated: boolean
  readonly equals: string
  readonly after: string
  readonly element: ToldType | null
  readonly domain: boolean
  readonly composite: boolean
  /** The type behind its domains. */
  readonly behind: string
  readonly modified: string | null
}

interface ToldKey {
  readonly names: readonly string[]
  readonly valid: boolean
  readonly immediate: boolean
}

interface Told {
  readonly mark: string | null
  readonly isTable: boolean
  readonly isParent: boolean
  readonly columns: readonly ToldColumn[] | null
  readonly key: ToldKey | null
  readonly uniques: readonly (readonly string[])[] | null
  readonly names: readonly string[] | null
}

/** The operator of a type's own B-tree by its strategy: 3 is `=`, 5 is `>`. */
const operatorOf = (strategy: 3 | 5): string => `coalesce((
           select pg_catalog.format('operator(%I.%s)', opn.nspname, o.oprname)
           from pg_catalog.pg_opclass k
           join pg_catalog.pg_am m on m.oid operator(pg_catalog.=) k.opcmethod and m.amname operator(pg_catalog.=) 'btree'::pg_catalog.name
           join pg_catalog.pg_amop p on p.amopfamily operator(pg_catalog.=) k.opcfamily and p.amopstrategy operator(pg_catalog.=) ${strategy}::pg_catalog.int2
             and p.amoplefttype operator(pg_catalog.=) k.opcintype and p.amoprighttype operator(pg_catalog.=) k.opcintype
           join pg_catalog.pg_operator o on o.oid operator(pg_catalog.=) p.amopopr
           join pg_catalog.pg_namespace opn on opn.oid operator(pg_catalog.=) o.oprnamespace
           where k.opcdefault and k.opcintype operator(pg_catalog.=) b.oid limit 1
         ), 'operator(pg_catalog.${strategy === 3 ? '=' : '>'})')`

/**
 * Types are named with their schema, since the search path may change; `equals` and `after` are operators of the type's own B-tree. A modifier stands behind the name of a type
 * that is not built in; those that are have a spelling of their own for it, which no search path changes. An index that
 * compares in another way than its column does is no key: two values that it takes for one are two rows to `equals`. The names of tables are asked for only where there is no such table. Operators are named in full: it runs under the caller's search path.
 */
const readTable = statement(
  `select pg_catalog.json_build_object(
     'mark', {schema}.table_mark($1::text::text),
     'isTable', (select c.relkind operator(pg_catalog.=) any ('{r,p}'::pg_catalog."char"[])
       from pg_catalog.pg_class c where c.oid operator(pg_catalog.=) pg_catalog.to_regclass($1::text::text)),
     'isParent', exists (
       select from pg_catalog.pg_inherits h
       join pg_catalog.pg_class c on c.oid operator(pg_catalog.=) h.inhrelid and not c.relispartition
       where h.inhparent operator(pg_catalog.=) pg_catalog.to_regclass($1::text::text)
     ),
     'columns', (
       select pg_catalog.json_agg(pg_catalog.json_build_object(
         'name', a.attname, 'nullable', not a.attnotnull,
         'generated', a.attgenerated operator(pg_catalog.<>) ''::pg_catalog."char" or a.attidentity operator(pg_catalog.=) 'a'::pg_catalog."char",
         'sql', pg_catalog.format('%I.%I', tn.nspname, t.typname),
         'domain', t.typtype operator(pg_catalog.=) 'd'::pg_catalog."char",
         'composite', b.typtype operator(pg_catalog.=) 'c'::pg_catalog."char",
         'behind', pg_catalog.format('%I.%I', b.nspname, b.typname),
         'modified', case when b.typmod operator(pg_catalog.<) 0 then null
           when b.nspname operator(pg_catalog.=) 'pg_catalog'::pg_catalog.name then pg_catalog.format_type(b.oid, b.typmod)
           else pg_catalog.format('%I.%I%s', b.nspname, b.typname,
             pg_catalog."substring"(pg_catalog.format_type(b.oid, b.typmod), '([(][^()]*[)])([[][]])?$')) end,
         'base', case when b.typnamespace operator(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace then b.typname end,
         'typmod', b.typmod,
         'labels', (select pg_catalog.json_agg(l.enumlabel order by l.enumsortorder) from pg_catalog.pg_enum l where l.enumtypid operator(pg_catalog.=) b.oid),
         'element', case when b.typcategory operator(pg_catalog.=) 'A'::pg_catalog."char" then (
           select pg_catalog.json_build_object(
             'sql', pg_catalog.format('%I.%I', en.nspname, e.typname),
             'base', case when e.typnamespace operator(pg_catalog.=) 'pg_catalog'::pg_catalog.regnamespace then e.typname end,
             'typmod', b.typmod,
             'labels', (select pg_catalog.json_agg(l.enumlabel order by l.enumsortorder) from pg_catalog.pg_enum l where l.enumtypid operator(pg_catalog.=) e.oid))
           from pg_catalog.pg_type e join pg_catalog.pg_namespace en on en.oid operator(pg_catalog.=) e.typnamespace
           where e.oid operator(pg_catalog.=) b.typelem) end,
         'equals', ${operatorOf(3)},
         'after', ${operatorOf(5)}
       ) order by a.attnum)
       from pg_catalog.pg_attribute a
       join pg_catalog.pg_type t on t.oid operator(pg_catalog.=) a.atttypid
       join pg_catalog.pg_namespace tn on tn.oid operator(pg_catalog.=) t.typnamespace
       cross join lateral (
         with recursive base as (
           select t.oid as id, a.atttypmod as typmod
           union all
           select d.typbasetype, d.typtypmod from base join pg_catalog.pg_type d on d.oid operator(pg_catalog.=) base.id
           where d.typtype operator(pg_catalog.=) 'd'::pg_catalog."char"
         ) select f.oid, f.typname, f.typnamespace, fn.nspname, f.typtype, f.typcategory, f.typelem, base.typmod
           from base join pg_catalog.pg_type f on f.oid operator(pg_catalog.=) base.id
           join pg_catalog.pg_namespace fn on fn.oid operator(pg_catalog.=) f.typnamespace
           where f.typtype operator(pg_catalog.<>) 'd'::pg_catalog."char"
       ) b
       where a.attrelid operator(pg_catalog.=) pg_catalog.to_regclass($1::text::text)
         and a.attnum operator(pg_catalog.>) 0::pg_catalog.int2 and not a.attisdropped
     ),
     'key', (
       select pg_catalog.json_build_object('names', pg_catalog.json_agg(a.attname order by k.n),
         'valid', pg_catalog.bool_and(i.indisvalid), 'immediate', pg_catalog.bool_and(i.indimmediate))
       from pg_catalog.pg_index i
       cross join lateral pg_catalog.unnest(i.indkey::pg_catalog.int2[]) with ordinality k(attnum, n)
       join pg_catalog.pg_attribute a on a.attrelid operator(pg_catalog.=) i.indrelid and a.attnum operator(pg_catalog.=) k.attnum
       where i.indrelid operator(pg_catalog.=) pg_catalog.to_regclass($1::text::text) and i.indisprimary
         and not i.indisexclusion and k.n operator(pg_catalog.<=) i.indnkeyatts
       having pg_catalog.count(*) operator(pg_catalog.>) 0
     ),
     'uniques', (
       select pg_catalog.json_agg(u.names)
       from (
         select pg_catalog.json_agg(a.attname order by k.n) as names
         from pg_catalog.pg_index i
         cross join lateral pg_catalog.unnest(i.indkey::pg_catalog.int2[]) with ordinality k(attnum, n)
         join pg_catalog.pg_attribute a on a.attrelid operator(pg_catalog.=) i.indrelid and a.attnum operator(pg_catalog.=) k.attnum
         where i.indrelid operator(pg_catalog.=) pg_catalog.to_regclass($1::text::text)
           and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indexprs is null
           and not i.indisexclusion
           and not exists (
             select from pg_catalog.generate_series(0, i.indnkeyatts operator(pg_catalog.-) 1) o(n)
             join pg_catalog.pg_attribute c on c.attrelid operator(pg_catalog.=) i.indrelid and c.attnum operator(pg_catalog.=) i.indkey[o.n]
             join pg_catalog.pg_opclass f on f.oid operator(pg_catalog.=) i.indclass[o.n]
             where not f.opcdefault or i.indcollation[o.n] operator(pg_catalog.<>) c.attcollation
           )
           and k.n operator(pg_catalog.<=) i.indnkeyatts
         group by i.indexrelid
         order by i.indexrelid
       ) u
     ),
     'names', case when pg_catalog.to_regclass($1::text::text) is null then (
       select pg_catalog.json_agg(v.name)
       from (
         select case when $2::text::text is null then c.relname::text else pg_catalog.format('%s.%s', n.nspname, c.relname) end as name
         from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid operator(pg_catalog.=) c.relnamespace
         where c.relkind operator(pg_catalog.=) any ('{r,p}'::pg_catalog."char"[])
           and case when $2::text::text is null then pg_catalog.pg_table_is_visible(c.oid)
             else n.nspname operator(pg_catalog.=) $2::text::pg_catalog.name end
           and n.nspname operator(pg_catalog.<>) all ('{pg_catalog,information_schema,pg_toast}'::pg_catalog.name[])
         order by c.relname limit 500
       ) v
     ) end
   )::text as told`,
  { readOnly: true },
)

/** What is known of the caller's tables, each read once. */
export class Catalog {
  readonly #database: Database
  /** What a name meant last. */
  readonly #tables = new Map<string, Table>()
  /** All that it has meant, by name and mark: where each tenant has a schema of its own, each call may mean another. */
  readonly #marked = new Map<string, Table>()

  constructor(database: Database) {
    this.#database = database
  }

  /** A table that was read before, by the name as it was given. */
  find(given: unknown): Table | undefined {
    return typeof given === 'string' ? this.#tables.get(given) : undefined
  }

  /** The table of this name that has this mark, if it was read before. */
  recall(given: unknown, mark: string | null): Table | undefined {
    const table = this.#marked.get(placeOf(`${given}`, `${mark}`))
    if (table) this.#tables.set(table.name.given, table)
    return table
  }

  /** The next call reads it anew, unless that was done meanwhile. */
  forget(table: Table): void {
    const { given } = table.name
    this.#marked.delete(placeOf(given, table.mark))
    if (this.find(given) === table) this.#tables.delete(given)
  }

  /** Reads a table, in the caller's transaction, which may have made it. */
  async read(given: unknown, tx: Tx | undefined, field = 'table'): Promise<Table> {
    const name = readTableName(given, field)
    const values = [name.quoted, name.schema ?? null]
    const [row] = await this.#database.send(readTable, values, tx)
    const table = toTable(name, JSON.parse(`${row?.told}`), field)
    const [first] = this.#marked.values()
    if (first && this.#marked.size >= MAX_TABLES) this.forget(first)
    this.#tables.set(name.given, table)
    this.#marked.set(placeOf(name.given, table.mark), table)
    return table
  }
}

const placeOf = (given: string, mark: string): string => `${mark} ${given}`

function toTable(name: TableName, told: Told, field: string): Table {
  if (told.mark === null) {
    const where = name.schema === undefined ? 'on the search path' : `in schema "${name.schema}"`
    throw new InvalidInputError(
      field,
      `names ${name.given}, and there is no such table ${where}. ${offerNames(name.given, told.names ?? [])}`,
    )
  }
  if (!told.isTable) throw new InvalidInputError(field, `names ${name.given}, which is not a table`)
  // No index of the parent keeps rows of a child from having the same key: one id would be several rows.
  if (told.isParent)
    throw new InvalidInputError(
      field,
      `names ${name.given}, which other tables inherit from: their rows count as its own, and its keys do not hold for them; partitions are taken`,
    )
  const count = told.columns?.length ?? 0
  if (count > MAX_COLUMNS)
    throw new InvalidInputError(
      field,
      `names ${name.given}, which has ${count} columns; at most ${MAX_COLUMNS} are taken, since rows are answered with all of them`,
    )
  return new Table(name, {
    mark: told.mark,
    columns: (told.columns ?? []).map(toColumn),
    key: told.key?.names ?? [],
    keyProblem: findProblem(told.key),
    uniques: told.uniques ?? [],
  })
}

/** Why one value of the primary key may be that of several rows. */
function findProblem(key: ToldKey | null): string | undefined {
  if (key && !key.valid)
    return 'is not valid, so that two rows may have the same: attach an index of each partition to it, or make it anew'
  if (key && !key.immediate)
    return 'is deferrable, so that two rows may have the same for a while: make it not deferrable, or name the columns of another unique index'
}

function toColumn(told: ToldColumn): Column {
  return {
    ...toType(told),
    name: told.name,
    quoted: quoteIdentifier(told.name),
    cast: told.behind,
    stored: told.modified ?? told.behind,
    equals: told.domain ? `::${told.behind} ${told.equals}` : told.equals,
    after: told.domain ? `::${told.behind} ${told.after}` : told.after,
    isComposite: told.composite,
    isNullable: told.nullable,
    isGenerated: told.generated,
    element: told.element === null ? undefined : toType(told.element),
  }
}

/** The modifier of a type is its length, or precision and scale, and four more; that of a time is its digits. */
function toType({ sql, base, labels, typmod }: ToldType): ColumnType {
  const known = typmod >= 4 ? typmod - 4 : undefined
  const hasLength = base === 'varchar' || base === 'bpchar'
  return {
    sql,
    base: base ?? undefined,
    labels: labels ?? undefined,
    maxLength: hasLength ? known : undefined,
    digits: base === 'timestamptz' && typmod >= 0 ? typmod : undefined,
    ...(base === 'numeric' && known !== undefined
      ? { precision: known >> 16, scale: ((known & 0x7ff) ^ 1024) - 1024 }
      : {}),
  }
}
