import { InvalidInputError } from '../errors.js'
import { quoteIdentifier } from '../postgres/identifier.js'
import { ROW, type RowArgs, writable } from '../postgres/rows/row-args.js'
import { keyTaken } from '../postgres/rows/row-id.js'
import { lockersOf, type SecondWrite } from '../postgres/rows/rows.js'
import type { Column, Table } from '../postgres/rows/table.js'
import { quoteLiteral } from '../postgres/statement.js'
import { amountColumn, checkDelta } from './adjust.js'
import type { AggregateSpec } from './aggregate-spec.js'
import type { Decimal } from './decimal.js'

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
      return { column, value, stored: `${value}::${column.stored}` }
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
      recompute: `update ${this.#parent.quoted} as ${ROW} set ${this.#sets} from ${this.#derived(key)} as "dibs_d"
      where ${match} returning 'written'::text, '1'::text, ${this.#parent.list(`${ROW}.`)}`,
    }
  }

  /** Counts the children of these parents, and writes what comes of it: a row for each id, behind its place. */
  get recompute(): string {
    return `with "dibs_w" as (
      update ${this.#parent.quoted} as ${ROW} set ${this.#sets} from ${this.#given} cross join lateral ${this.#derived(this.#givenKey)} as "dibs_d"
      where ${this.#match('"dibs_g"')} returning ${this.#parent.list(`${ROW}.`)})
    select 'written'::text, "dibs_i"."dibs_n"::text, ${this.#parent.list('"dibs_w".')}
    from ${IDS} join "dibs_w" on ${this.#match('"dibs_i"', '"dibs_w"')} order by "dibs_i"."dibs_n"`
  }

  /** The same, and answers how many of them are that now, and how many are not. One that was right before may stay as it is. */
  get refresh(): string {
    return `with "dibs_c" as materialized (
      select "dibs_g".*, "dibs_d".*, pg_catalog.row_number() over () as "dibs_n" from ${this.#given} cross join lateral ${this.#derived(this.#givenKey)} as "dibs_d"),
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
          return areIntegers(key, foreign)
            ? `${own} ${INTEGERS} ${its}`
            : `${own} ${key.equals} ${its}::${key.cast}`
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

  /** Those that are not what their children say, and that nobody has marked: each with what it was and what it is to be; counted anew, or as they are. */
  drifted({ repairs }: { readonly repairs: boolean }): string {
    const found = `select "dibs_g".*, "dibs_d".*, ${this.#told} as "dibs_told"
      from ${this.#given} join ${this.#parent.quoted} as ${ROW} on ${this.#match('"dibs_g"')} cross join lateral ${this.#derived(this.#givenKey)} as "dibs_d"
      where case when exists (select from ${this.#schema}.aggregate_mark as "dibs_i"("dibs_aggregate", "dibs_parent", "dibs_seq", "dibs_id")
        where "dibs_i"."dibs_aggregate" operator(pg_catalog.=) ${quoteText(this.#spec.name)}
          and "dibs_i"."dibs_parent" operator(pg_catalog.=) pg_catalog.to_regclass(${quoteText(this.#parent.quoted)})::pg_catalog.oid and ${this.#match('"dibs_i"')}) then false else ${this.#differs} end`
    const rows = `${this.#parent.quoted} as ${ROW}`
    const answer = `'drifted'::text, "dibs_d"."dibs_told", ${this.#parent.list(`${ROW}.`)}`
    if (!repairs)
      return `select ${answer} from (${found}) as "dibs_d" join ${rows} on ${this.#match('"dibs_d"')} order by ${this.#order}`
    return `update ${rows} set ${this.#sets} from (${found}) as "dibs_d" where ${this.#match('"dibs_d"')} returning ${answer}`
  }

  /**
   * The next so many parents, behind an id if one is given: those that are not what their children say (`suspect`), and the last of them (`last`), each with its id
   * and how many there were.
   */
  page(isBehind: boolean, limit: number): string {
    const behind = isBehind ? ` where ${this.#behind}` : ''
    const [place, count] = ['dibs_place', 'dibs_count'].map((name) => `"${this.#parent.freeName(name)}"`)
    const differs = this.#differs
    return `select case when ${differs} then 'suspect' else 'last' end::text,
      pg_catalog.json_build_object('id', ${this.#idText}, 'count', ${ROW}.${count})::pg_catalog.text,
      ${this.#parent.list(`${ROW}.`)}
    from (
      select "dibs_p".*, pg_catalog.row_number() over () as ${place}, pg_catalog.count(*) over () as ${count}
      from (select ${ROW}.* from ${this.#parent.quoted} as ${ROW}${behind} order by ${this.#order} limit ${limit}) as "dibs_p") as ${ROW}
    cross join lateral ${this.#derived(this.key.map(({ quoted }) => `${ROW}.${quoted}`))} as "dibs_d"
    where ${differs} or ${ROW}.${place} operator(pg_catalog.=) ${ROW}.${count} order by ${ROW}.${place}`
  }

  /** The parent behind that id, or the first, whatever its children say. */
  next(isBehind: boolean): string {
    return `select 'suspect'::text, pg_catalog.json_build_object('id', ${this.#idText}, 'count', 1)::pg_catalog.text, ${this.#parent.list(`${ROW}.`)}
    from ${this.#parent.quoted} as ${ROW}${isBehind ? ` where ${this.#behind}` : ''} order by ${this.#order} limit 1`
  }

  /**
   * A view that derives what the parent would otherwise keep: its key, what is derived, and then the other columns, so that one which the parent gets later is the last of the view. There PostgreSQL
   * takes it. `isInvokers`: who reads needs rights on both tables, and sees what their policies let see.
   */
  view(name: string, isInvokers: boolean): string {
    const derived = new Set(this.#spec.columns.map(([column]) => column))
    const own = [...this.#parent.columns.values()].filter(({ name: column }) => !derived.has(column))
    const list = [
      ...this.key.map(({ quoted }) => `p.${quoted}`),
      ...this.#spec.columns.map(([column], n) => this.#viewed(`d."dibs_${n}"`, column)),
      ...own.filter((column) => !this.key.includes(column)).map(({ quoted }) => `p.${quoted}`),
    ]
    return `create or replace view ${name}${isInvokers ? ' with (security_invoker = true)' : ''} as
select ${list.join(', ')}
from ${this.#parent.quoted} as p
cross join lateral ${this.#derived(this.key.map(({ quoted }) => `p.${quoted}`))} as d`
  }

  /** As the parent's column would have kept it; a text that is too long for it is not cut off. */
  #viewed(value: string, name: string): string {
    const column = this.#parent.columns.get(name)
    const type = column?.maxLength === undefined ? column?.stored : column.cast
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

  /** The parents that were asked for, each once, and the columns of their key. */
  get #given(): string {
    const keys = this.key.map((_, n) => `${this.#part('"dibs_i"', n)} as "dibs_k${n}"`)
    return `(select distinct ${keys.join(', ')} from ${IDS}) as "dibs_g"`
  }

  /** What the children of a parent say, whose key this is. */
  #derived(key: readonly string[]): string {
    const values = this.#spec.columns.map(([, expression], n) => `(${expression}\n) as "dibs_${n}"`)
    const match = this.#pairs.map(([own, foreign], n) => {
      const its = this.#child.own(foreign)
      if (areIntegers(own, foreign)) return `${its} ${INTEGERS} ${key[n]}`
      if (isInteger(foreign)) return `${its}::${own.cast} ${own.equals} ${key[n]}`
      return `${its} ${foreign.equals} ${key[n]}::${foreign.cast}`
    })
    return `(select ${values.join(', ')} from ${this.#child.quoted} where ${match.join(' and ')})`
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

  get #givenKey(): readonly string[] {
    return this.key.map((_, n) => `"dibs_g"."dibs_k${n}"`)
  }

  /** What it keeps, and what its children say. */
  get #told(): string {
    const columns = this.#kept.map(
      ({ column, stored }) =>
        `${quoteText(column.name)}, pg_catalog.json_build_object('stored', ${ROW}.${column.quoted}::pg_catalog.text, 'derived', ${stored}::pg_catalog.text)`,
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

  #match(from: '"dibs_i"' | '"dibs_g"' | '"dibs_d"', row: string = ROW): string {
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
function differ({ column, stored }: Kept): string {
  const own = `${ROW}.${column.quoted}`
  return `case when ${own} is null or ${stored} is null then ${own} is not null or ${stored} is not null else not (${own} ${column.equals} ${stored}) end`
}

/** Whole numbers of any two sizes are compared as they are, by an index too: to cast one to the size of the other may fail. */
const INTEGERS = 'operator(pg_catalog.=)'
const isInteger = ({ base }: Column): boolean => ['int2', 'int4', 'int8'].includes(`${base}`)
const areIntegers = (one: Column, other: Column): boolean => isInteger(one) && isInteger(other)

const quoteText = (text: string): string => `${quoteLiteral(text)}::pg_catalog.text`
