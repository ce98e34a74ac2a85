import { InvalidInputError } from '../../errors.js'
import { offerNames } from '../../options/nearest-name.js'
import { quoteIdentifier } from '../../postgres/identifier.js'
import { statement } from '../../postgres/statement.js'
import { type Column, type ColumnType, Table } from './table.js'
import type { TableName } from './table-name.js'

/** PostgreSQL allows 1,600 columns in a result; the remaining ten are for details about the row. */
const MAX_COLUMNS = 1_590

interface TypeDefinition {
  readonly sql: string
  readonly base: string | null
  readonly labels: readonly string[] | null
  readonly typmod: number
}

interface ColumnDefinition extends TypeDefinition {
  readonly name: string
  readonly nullable: boolean
  readonly generated: boolean
  readonly equals: string
  readonly after: string
  readonly element: TypeDefinition | null
  readonly domain: boolean
  readonly composite: boolean
  /** The type under its domains. */
  readonly behind: string
  readonly modified: string | null
}

interface KeyDefinition {
  readonly names: readonly string[]
  readonly valid: boolean
  readonly immediate: boolean
}

export interface TableDefinition {
  readonly fingerprint: string | null
  readonly isTable: boolean
  readonly isParent: boolean
  readonly columns: readonly ColumnDefinition[] | null
  readonly key: KeyDefinition | null
  readonly uniques: readonly (readonly string[])[] | null
  readonly names: readonly string[] | null
}

/** The operator of a type's default B-tree operator class, by strategy: 3 is `=`, 5 is `>`. */
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
 * Reads the definition of a table, under the caller's search path; all operators are therefore qualified.
 *
 * - Types are qualified, because the search path may change.
 * - The modifier of a user-defined type follows its name. Built-in types spell their modifier in ways that no search path changes.
 * - `equals` and `after` are operators of the type's default B-tree.
 * - A unique index with another collation or operator class than its column is no key: it may treat two values as one that differ
 *   under `equals`.
 * - `names` is read only if there is no such table.
 */
export const readTable = statement(
  `select pg_catalog.json_build_object(
     'fingerprint', {schema}.table_fingerprint($1::text::text),
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
   )::text as definition`,
  { readOnly: true },
)

/** Converts the definition that `readTable` returns. `field` is the option that names the table, for errors. */
export function toTable(name: TableName, definition: TableDefinition, field: string): Table {
  if (definition.fingerprint === null) {
    const where = name.schema === undefined ? 'on the search path' : `in schema "${name.schema}"`
    throw new InvalidInputError(
      field,
      `names ${name.input}, and there is no such table ${where}. ${offerNames(name.input, definition.names ?? [])}`,
    )
  }
  if (!definition.isTable) throw new InvalidInputError(field, `names ${name.input}, which is not a table`)
  // A row of a child table may have the same key as a row of the parent: no index of the parent covers it.
  if (definition.isParent)
    throw new InvalidInputError(
      field,
      `names ${name.input}, which other tables inherit from: their rows count as its own, and its keys do not hold for them; partitions are taken`,
    )
  const count = definition.columns?.length ?? 0
  if (count > MAX_COLUMNS)
    throw new InvalidInputError(
      field,
      `names ${name.input}, which has ${count} columns; at most ${MAX_COLUMNS} are taken, since rows are answered with all of them`,
    )
  return new Table(name, {
    fingerprint: definition.fingerprint,
    columns: (definition.columns ?? []).map(toColumn),
    key: definition.key?.names ?? [],
    keyProblem: findKeyProblem(definition.key),
    uniques: definition.uniques ?? [],
  })
}

/** Why several rows may have the same primary key. */
function findKeyProblem(key: KeyDefinition | null): string | undefined {
  if (key && !key.valid)
    return 'is not valid, so that two rows may have the same: attach an index of each partition to it, or make it anew'
  if (key && !key.immediate)
    return 'is deferrable, so that two rows may have the same for a while: make it not deferrable, or name the columns of another unique index'
}

function toColumn(definition: ColumnDefinition): Column {
  return {
    ...toType(definition),
    name: definition.name,
    quoted: quoteIdentifier(definition.name),
    cast: definition.behind,
    stored: definition.modified ?? definition.behind,
    equals: definition.domain ? `::${definition.behind} ${definition.equals}` : definition.equals,
    after: definition.domain ? `::${definition.behind} ${definition.after}` : definition.after,
    isComposite: definition.composite,
    isNullable: definition.nullable,
    isGenerated: definition.generated,
    element: definition.element === null ? undefined : toType(definition.element),
  }
}

/**
 * Decodes the type modifier. A length, or precision and scale, is stored plus four; the digits of a time are stored as they
 * are.
 */
function toType({ sql, base, labels, typmod }: TypeDefinition): ColumnType {
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
