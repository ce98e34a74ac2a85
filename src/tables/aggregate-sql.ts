import { InvalidInputError } from '../errors.js'
import { quoteIdentifier } from '../postgres/identifier.js'
import { ROW, type RowArgs, writable } from '../postgres/rows/row-args.js'
import { keyTaken } from '../postgres/rows/row-id.js'
import { lockersOf, type SecondWrite } from '../postgres/rows/rows.js'
import type { Column, ColumnType, Table } from '../postgres/rows/table.js'
import { quoteLiteral } from '../postgres/statement.js'
import { amountColumn, checkDelta } from './adjust.js'
import type { AggregateSpec } from './aggregate-spec.js'
import type { Decimal } from './decimal.js'
import { exactText } from './exact-text.js'

/** A column that is kept, and what its children say. */
interface Kept {
  readonly column: Column
  /** As it is written: what does not fit is refused. */
  readonly value: string
  /** As the column would have kept it. */
  readonly stored: string
}

/** An id in our statements: the JSON of the texts of its key's columns. `$1` is an array of them. */
const IDS = 'pg_catalog.unnest($1) with ordinality as "dibs_i"("dibs_id", "dibs_n")'

/**
 * The statements about one aggregate, for tables as they are known. A child's expressions stand in a select of their own, in which nothing of the parent can be
 * seen but the key: a name that only the parent has would otherwise be taken from there.
 */
export class AggregateSql {
  readonly key: readonly Column[]
  readonly #parent: Table
  readonly #child: Table
  readonly #spec: AggregateSpec
  readonly #schema: string
  /** The columns of the child that say which parent. */
  readonly foreign: readonly Column[]

  /** @param schema our own, as it stands in SQL */
  constructor(parent: Table, child: Table, spec: AggregateSpec, schema: string) {
    this.#schema = schema
    this.#parent = parent
    this.#child = child
    this.#spec = spec
    this.key = parent.key
    this.foreign = spec.foreignKey.map((name) => child.column('foreignKey', name))
    if (this.key.length === 0)
      throw new InvalidInputError('parent', `names ${parent.name.given}, which has no primary key`)
    if (this.key.length !== this.foreign.length)
      throw new InvalidInputError(
        'foreignKey',
        `must name ${this.key.length} of the child's columns, as the primary key of ${parent.name.given} has (${this.key.map(({ name }) => name).join(', ')}), not ${this.foreign.length}`,
      )
  }

  /** What is kept, by the columns of the parent. */
  get #kept(): readonly Kept[] {
    const taken = keyTaken(this.#parent, [])
    return this.#spec.columns.map(([name], n) => {
      const column = writable(`columns.${name}`, this.#parent, name, taken)
      const value = `"dibs_d"."dibs_${n}"`
      return { column, value, stored: asStored(value, column) }
    })
  }

  get #sets(): string {
    return this.#kept.map(({ column, value }) => `${column.quoted} = ${value}`).join(', ')
  }

  /** Locks the parents with these ids, in the order of their key; answers the places of those that are there. */
  get lock(): string {
    return this.#locking('"dibs_i"."dibs_n"::pg_catalog.text', '')
  }

  /** The same for those that nobody has locked; answers their ids. */
  get lockFree(): string {
    return this.#locking('"dibs_i"."dibs_id"', ' skip locked')
  }

  /** The parents with these ids that this role can read, and can not lock though nobody else has: a policy keeps them. Fails where somebody has. */
  get kept(): string {
    return `select 'kept'::text, null::text, ${this.#parent.list(`${ROW}.`)} from ${IDS} join ${this.#parent.quoted} as ${ROW} on ${this.#match('"dibs_i"')}
      where not exists (${this.#locking('1', ' nowait')})`
  }

  #locking(told: string, others: string): string {
    return `select ${told} as "dibs_told" from ${IDS} join ${this.#parent.quoted} as ${ROW} on ${this.#match('"dibs_i"')}
      order by ${this.#order} for no key update of ${ROW}${others}`
  }

  /** Who has locked them. */
  get lockers(): string {
    return lockersOf(this.#parent, `exists (select from ${IDS} where ${this.#match('"dibs_i"')})`)
  }

  /** The ids that no parent has. One of before a key got another column is none of them. */
  get absent(): string {
    return `select pg_catalog.array_agg("dibs_i"."dibs_id") from ${IDS}
      where pg_catalog.json_array_length("dibs_i"."dibs_id"::pg_catalog.json) operator(pg_catalog.=) ${this.key.length}
        and not exists (select from ${this.#parent.quoted} as ${ROW} where ${this.#match('"dibs_i"')})`
  }

  /** Both for one id, which is what most ask for: in half the time, since there is less to plan. */
  get one(): { readonly lock: string; readonly recompute: string } {
    const key = this.key.map((_, n) => this.#first(n))
    const match = this.key
      .map(({ quoted, equals }, n) => `${ROW}.${quoted} ${equals} ${key[n]}`)
      .join(' and ')
    return {
      lock: `select '1'::text from ${this.#parent.quoted} as ${ROW} where ${match} for no key update of ${ROW}`,
      recompute: `with "dibs_w" as (
      update ${this.#parent.quoted} as ${ROW} set ${this.#sets} from ${this.#counted(key)} as "dibs_d"
      where ${match} returning ${this.#written})
    select 'written'::text, '1'::text, ${this.#parent.list('"dibs_w".')} from "dibs_w" where not "dibs_w".${this.#wrong}`,
    }
  }

  /** Counts the children of these parents, and writes what comes of it: a row for each id, behind its place; none for one that is not what was written. */
  get recompute(): string {
    return `with "dibs_w" as (
      update ${this.#parent.quoted} as ${ROW} set ${this.#sets} from ${this.#givenCounted}
      where ${this.#match('"dibs_g"')} returning ${this.#written})
    select 'written'::text, "dibs_i"."dibs_n"::text, ${this.#parent.list('"dibs_w".')}
    from ${IDS} join "dibs_w" on ${this.#match('"dibs_i"', '"dibs_w"')} where not "dibs_w".${this.#wrong} order by "dibs_i"."dibs_n"`
  }

  /** A row as it was written, and whether that is what was to be: a trigger may have made something else of it. */
  get #written(): string {
    return `${this.#parent.list(`${ROW}.`)}, (${this.#differs}) as ${this.#wrong}`
  }

  get #wrong(): string {
    return `"${this.#parent.freeName('dibs_wrong')}"`
  }

  /** The same, and answers how many of them are that now, and how many are not. One that was right before may stay as it is. */
  get refresh(): string {
    return `with "dibs_c" as materialized (
      select "dibs_g".*, "dibs_d".*, pg_catalog.row_number() over () as "dibs_n" from ${this.#givenCounted}),
    "dibs_w" as (
      update ${this.#parent.quoted} as ${ROW} set ${this.#sets} from "dibs_c" as "dibs_d" where ${this.#match('"dibs_d"')}
      returning "dibs_d"."dibs_n", ${this.#differs} as "dibs_differs"),
    "dibs_l" as (
      select pg_catalog.count(*)::pg_catalog.int4 as "dibs_left" from "dibs_c" as "dibs_d" join ${this.#parent.quoted} as ${ROW} on ${this.#match('"dibs_d"')}
      where (${this.#differs}) and not exists (
        select from "dibs_w" where "dibs_w"."dibs_n" operator(pg_catalog.=) "dibs_d"."dibs_n" and not "dibs_w"."dibs_differs"))
    select (select pg_catalog.count(*)::pg_catalog.int4 from "dibs_c") operator(pg_catalog.-) "dibs_l"."dibs_left", "dibs_l"."dibs_left" from "dibs_l"`
  }

  /** Adds to the parents of these children; `match` is which child that is. */
  add(
    children: string,
    deltas: readonly (readonly [column: string, delta: Decimal])[],
    args: RowArgs,
    match: string,
  ): SecondWrite {
    const taken = keyTaken(this.#parent, [])
    const sets = deltas.map(([name, delta]) => {
      const column = amountColumn(this.#parent, name, `add.${name}`)
      writable(`add.${name}`, this.#parent, name, taken)
      checkDelta(`add.${name}`, delta, column)
      const numeric = 'pg_catalog.numeric'
      return `${column.quoted} = (coalesce(${ROW}.${column.quoted}::${numeric}, 0) operator(pg_catalog.+) ${args.place(delta.text, numeric)})::${column.sql}`
    })
    const isParentOf = (row: string): string =>
      this.#pairs
        .map(([key, foreign]) => {
          const [own, its] = [`${ROW}.${key.quoted}`, `${row}.${foreign.quoted}`]
          if (areIntegers(key, foreign)) return `${own} ${INTEGERS} ${its}`
          const isOwn = `${own} ${key.equals} ${its}::${key.cast}`
          return isInteger(foreign) || key.cast === foreign.cast
            ? isOwn
            : both(isOwn, `${its} ${foreign.equals} ${own}::${foreign.cast}`)
        })
        .join(' and ')
    const child = `(select ${ROW}.* from ${this.#child.quoted} as ${ROW} where ${match}) as "dibs_c"`
    return {
      write: `update ${this.#parent.quoted} as ${ROW} set ${sets.join(', ')} from ${children} where ${isParentOf(children)}`,
      isWanted: this.foreign.map(({ quoted }) => `${children}.${quoted} is not null`).join(' and '),
      table: this.#parent,
      held: `select array[${this.#idText}, ${ROW}.xmax::pg_catalog.text] from ${child} join ${this.#parent.quoted} as ${ROW} on ${isParentOf('"dibs_c"')}`,
    }
  }

  /**
   * Those that are not what their children say, and that nobody has marked: each with what it was and what it is to be; counted anew, or as they are. One that was written and is not what it was
   * to be, or was not written, is `kept`.
   *
   * The marks are read by the statement that counts: one that came later would be of a child that was counted. And each once, by all together, since there may be a million.
   */
  drifted({ repairs }: { readonly repairs: boolean }): string {
    const keys = this.key.map((_, n) => `${this.#part('"dibs_i"', n)} as "dibs_k${n}"`)
    const marked = `"dibs_m" as materialized (
      select ${keys.join(', ')} from (select distinct "dibs_a"."dibs_id" from ${this.#schema}.aggregate_mark as "dibs_a"("dibs_aggregate", "dibs_parent", "dibs_seq", "dibs_id")
        where "dibs_a"."dibs_aggregate" operator(pg_catalog.=) ${quoteText(this.#spec.name)}
          and "dibs_a"."dibs_parent" operator(pg_catalog.=) pg_catalog.to_regclass(${quoteText(this.#parent.quoted)})::pg_catalog.oid) as "dibs_i")`
    const found = `"dibs_c" as materialized (
      select "dibs_g".*, "dibs_d".*, ${this.#told} as "dibs_told"
      from ${this.#givenCounted} join ${this.#parent.quoted} as ${ROW} on ${this.#match('"dibs_g"')}
      left join "dibs_m" on ${this.#match('"dibs_m"')}
      where case when "dibs_m"."dibs_k0" is not null then false else ${this.#differs} end)`
    const written = repairs
      ? `,
    "dibs_w" as (
      update ${this.#parent.quoted} as ${ROW} set ${this.#sets} from "dibs_c" as "dibs_d" where ${this.#match('"dibs_d"')}
      returning "dibs_d"."dibs_id", (${this.#differs}) as "dibs_wrong")`
      : ''
    const isWritten = `exists (select from "dibs_w" where "dibs_w"."dibs_id" operator(pg_catalog.=) "dibs_d"."dibs_id" and not "dibs_w"."dibs_wrong")`
    return `with ${marked}, ${found}${written}
    select ${repairs ? `case when ${isWritten} then 'drifted' else 'kept' end` : `'drifted'`}::text, "dibs_d"."dibs_told", ${this.#parent.list(`${ROW}.`)}
    from "dibs_c" as "dibs_d" join ${this.#parent.quoted} as ${ROW} on ${this.#match('"dibs_d"')} order by ${this.#order}`
  }

  /**
   * The next so many parents, behind an id if one is given: those that are not what their children say (`suspect`), and the last of them (`last`), each with its id
   * and how many there were.
   */
  page(isBehind: boolean, limit: number): string {
    const behind = isBehind ? ` where ${this.#behind}` : ''
    const [place, count] = ['dibs_place', 'dibs_count'].map((name) => `"${this.#parent.freeName(name)}"`)
    const keys = this.key.map(({ quoted }, n) => `"dibs_p".${quoted} as "dibs_k${n}"`)
    const differs = this.#differs
    return `with "dibs_p" as materialized (
      select "dibs_p".*, pg_catalog.row_number() over () as ${place}, pg_catalog.count(*) over () as ${count}
      from (select ${ROW}.* from ${this.#parent.quoted} as ${ROW}${behind} order by ${this.#order} limit ${limit}) as "dibs_p")
    select case when ${differs} then 'suspect' else 'last' end::text,
      pg_catalog.json_build_object('id', ${this.#exactId}, 'count', ${ROW}.${count})::pg_catalog.text,
      ${this.#parent.list(`${ROW}.`)}
    from (select "dibs_p".${place} as "dibs_n", ${keys.join(', ')} from "dibs_p") as "dibs_g"
    cross join lateral ${this.#counted(this.#givenKey)} as "dibs_d"
    join "dibs_p" as ${ROW} on ${ROW}.${place} operator(pg_catalog.=) "dibs_g"."dibs_n"
    where ${differs} or ${ROW}.${place} operator(pg_catalog.=) ${ROW}.${count} order by ${ROW}.${place}`
  }

  /** The parent behind that id, or the first, whatever its children say. */
  next(isBehind: boolean): string {
    return `select 'suspect'::text, pg_catalog.json_build_object('id', ${this.#exactId}, 'count', 1)::pg_catalog.text, ${this.#parent.list(`${ROW}.`)}
    from ${this.#parent.quoted} as ${ROW}${isBehind ? ` where ${this.#behind}` : ''} order by ${this.#order} limit 1`
  }

  /**
   * A view that derives what the parent would otherwise keep: its key, what is derived, and then the other columns, so that one which the parent gets later is the last of the view. There PostgreSQL
   * takes it. `isInvokers`: who reads needs rights on both tables, and sees what their policies let see.
   */
  view(name: string, isInvokers: boolean): { readonly create: string; readonly like: string } {
    const rest = `${isInvokers ? ' with (security_invoker = true)' : ''} as\n${this.#viewSelect}`
    return {
      create: `create or replace view ${name}${rest}`,
      like: `create temporary view "dibs_like"${rest}`,
    }
  }

  get #viewSelect(): string {
    const derived = new Set(this.#spec.columns.map(([column]) => column))
    const ofKey = this.key.find(({ name }) => derived.has(name))
    if (ofKey)
      throw new InvalidInputError(`columns.${ofKey.name}`, 'must not be given: it says which row it is')
    const own = [...this.#parent.columns.values()].filter(({ name: column }) => !derived.has(column))
    // In the select over the children, a child of that name would be taken for it.
    const parent = this.#child.partName('p')
    const list = [
      ...this.key.map(({ quoted }) => `${parent}.${quoted}`),
      ...this.#spec.columns.map(([column], n) => this.#viewed(`d."dibs_${n}"`, column)),
      ...own.filter((column) => !this.key.includes(column)).map(({ quoted }) => `${parent}.${quoted}`),
    ]
    return `select ${list.join(', ')}
from ${this.#parent.quoted} as ${parent}
cross join lateral ${this.#derived(this.key.map(({ quoted }) => `${parent}.${quoted}`))} as d`
  }

  /** As the parent's column would have kept it; a text that is too long for it is not cut off. */
  #viewed(value: string, name: string): string {
    const column = this.#parent.columns.get(name)
    const type = column && isCutOff(column) ? column.cast : column?.stored
    return `${value}${type === undefined ? '' : `::${type}`} as ${quoteIdentifier(name)}`
  }

  /** Statements that ask whether each expression can be, by itself: two for each. See `aggregate_check`. */
  checks(isKept: boolean): readonly string[] {
    const kept = isKept ? this.#kept : []
    return this.#spec.columns.flatMap(([, expression], n) => {
      const alone = `select (${expression}\n) as "dibs_${n}" from ${this.#child.quoted}`
      const column = kept[n]
      return [
        // Over no rows an aggregate has one answer, and everything else none.
        `select pg_catalog.count(*)::text from (${alone} where false) as "dibs_d"`,
        column === undefined
          ? 'select null::text'
          : `explain update ${this.#parent.quoted} as ${ROW} set ${column.column.quoted} = ${column.value} from (${alone}) as "dibs_d" where ${differ(column)}`,
      ]
    })
  }

  /** The parents that were asked for, each once, however its id is written: the columns of their key, and an id. */
  get #given(): string {
    const keys = this.key.map((_, n) => `${this.#part('"dibs_i"', n)} as "dibs_k${n}"`)
    const places = this.key.map((_, n) => n + 1).join(', ')
    return `(select ${keys.join(', ')}, pg_catalog.min("dibs_i"."dibs_id") as "dibs_id" from ${IDS} group by ${places}) as "dibs_g"`
  }

  /** These, and what the children of each say. Nothing of the parent stands before it: a column that the child has lost meanwhile would be taken from there. */
  get #givenCounted(): string {
    return `${this.#given} cross join lateral ${this.#counted(this.#givenKey)} as "dibs_d"`
  }

  /** What the children of a parent say, whose key this is; it fails for a role that does not see all of them. */
  #counted(key: readonly string[]): string {
    const seesAll = `(select ${this.#schema}.aggregate_sees_all(${quoteText(this.#child.quoted)}))`
    return this.#derived(key, [seesAll])
  }

  /** The same, of those that are seen. */
  #derived(key: readonly string[], conditions: readonly string[] = []): string {
    const values = this.#spec.columns.map(([, expression], n) => `(${expression}\n) as "dibs_${n}"`)
    const match = this.#pairs.map(([own, foreign], n) => {
      const its = this.#child.own(foreign)
      if (areIntegers(own, foreign)) return `${its} ${INTEGERS} ${key[n]}`
      if (isInteger(foreign)) return `${its}::${own.cast} ${own.equals} ${key[n]}`
      const isIts = `${its} ${foreign.equals} ${key[n]}::${foreign.cast}`
      return own.cast === foreign.cast ? isIts : both(isIts, `${key[n]} ${own.equals} ${its}::${own.cast}`)
    })
    return `(select ${values.join(', ')} from ${this.#child.quoted} where ${[...conditions, ...match].join(' and ')})`
  }

  /** The columns of the key, each with that of the child. */
  get #pairs(): readonly (readonly [own: Column, foreign: Column])[] {
    return this.foreign.map((foreign, n) => [this.key[n] as Column, foreign])
  }

  /** The id of a parent, as a text. */
  get #idText(): string {
    const texts = this.key.map(({ quoted }) => `${ROW}.${quoted}::pg_catalog.text`)
    return `pg_catalog.json_build_array(${texts.join(', ')})::pg_catalog.text`
  }

  /** The same, such that it is no other's and no setting of a session changes it; see `readExactId`. */
  get #exactId(): string {
    const texts = this.key.map((column) => exactText(column, `${ROW}.${column.quoted}`))
    return `pg_catalog.json_build_array(${texts.join(', ')})::pg_catalog.text`
  }

  get #givenKey(): readonly string[] {
    return this.key.map((_, n) => `"dibs_g"."dibs_k${n}"`)
  }

  /** What it keeps, and what its children say. */
  get #told(): string {
    const columns = this.#kept.map(
      ({ column, stored }) =>
        `${quoteText(column.name)}, pg_catalog.json_build_object('stored', ${ROW}.${column.quoted}::pg_catalog.text, 'derived', (${stored})::pg_catalog.text)`,
    )
    return `pg_catalog.json_build_object(${columns.join(', ')})::pg_catalog.text`
  }

  get #differs(): string {
    return this.#kept.map(differ).join(' or ')
  }

  get #order(): string {
    return this.key.map(({ quoted }) => `${ROW}.${quoted}`).join(', ')
  }

  /** One column of the key of an id. */
  #part(from: string, n: number): string {
    return `(${from}."dibs_id"::pg_catalog.json operator(pg_catalog.->>) ${n})::${this.key[n]?.cast}`
  }

  /** The same of the first id that is given. */
  #first(n: number): string {
    return `(($1)[1]::pg_catalog.json operator(pg_catalog.->>) ${n})::${this.key[n]?.cast}`
  }

  #match(from: '"dibs_i"' | '"dibs_g"' | '"dibs_d"' | '"dibs_m"', row: string = ROW): string {
    return this.key
      .map((column, n) => {
        const value = from === '"dibs_i"' ? this.#part(from, n) : `${from}."dibs_k${n}"`
        return `${row}.${column.quoted} ${column.equals} ${value}`
      })
      .join(' and ')
  }

  /** Behind the one id that is given, in the order of the key. */
  get #behind(): string {
    const parts = this.key.map(({ quoted, equals }, n) => {
      const given = this.#first(n)
      const compare = (sign: string): string =>
        `${ROW}.${quoted} ${equals.replace('=)', `${sign})`)} ${given}`
      return { isMore: compare('>'), isSame: compare('='), isNotLess: compare('>=') }
    })
    const behind = parts.reduceRight(
      (rest, { isMore, isSame }) => `${isMore} or ${isSame} and (${rest})`,
      'false',
    )
    return `${parts[0]?.isNotLess} and (${behind})`
  }
}

/** It is not what its children say. */
function differ({ column, value, stored }: Kept): string {
  const own = `${ROW}.${column.quoted}`
  return `case when ${own} is null or ${value} is null then ${own} is not null or ${value} is not null else not (${own} ${column.equals} (${stored})) end`
}

/** What the column keeps of a value: numbers are rounded. What is too long is refused, and so stays as it is here, where a cast would cut it off; but spaces at its end are. */
function asStored(value: string, column: Column): string {
  if (!isCutOff(column)) return `${value}::${column.stored}`
  const [whole, cut] = [`${value}::${column.cast}`, `${value}::${column.stored}`]
  if (column.maxLength === undefined) return whole
  const trimmed = (text: string): string => `pg_catalog.rtrim((${text})::pg_catalog.text)`
  return `case when ${trimmed(whole)} operator(pg_catalog.=) ${trimmed(cut)} then ${cut} else ${whole} end`
}

/** To cast to its type cuts a value off. */
const isCutOff = ({ base, maxLength, element }: ColumnType): boolean =>
  maxLength !== undefined ||
  base === 'bit' ||
  base === 'varbit' ||
  (element !== undefined && isCutOff(element))

/**
 * Of two values of different types, each cast to that of the other: one cast alone may lose what tells two keys apart, as that of a time to its day does. The first is what an index is for, and
 * where it is false the second is not tried, since its cast may fail.
 */
const both = (first: string, second: string): string =>
  `${first} and case when ${first} then ${second} else false end`

/** Whole numbers of any two sizes are compared as they are, by an index too: to cast one to the size of the other may fail. */
const INTEGERS = 'operator(pg_catalog.=)'
const isInteger = ({ base }: Column): boolean => ['int2', 'int4', 'int8'].includes(`${base}`)
const areIntegers = (one: Column, other: Column): boolean => isInteger(one) && isInteger(other)

const quoteText = (text: string): string => `${quoteLiteral(text)}::pg_catalog.text`
