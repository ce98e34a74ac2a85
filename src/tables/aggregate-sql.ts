import { InvalidInputError } from '../errors.js'
import { ROW, writable } from '../postgres/rows/row-args.js'
import { keyTaken } from '../postgres/rows/row-id.js'
import { lockersOf } from '../postgres/rows/rows.js'
import type { Column, Table } from '../postgres/rows/table.js'
import { quoteLiteral } from '../postgres/statement.js'
import type { AggregateSpec } from './aggregate-spec.js'
import { differ, type KeptColumn, keepIn } from './kept-column.js'
import { childHas, type KeyPair } from './key-pair.js'

/** An id in our statements: the JSON of the texts of its key's columns. `$1` is an array of them. */
export const IDS = 'pg_catalog.unnest($1) with ordinality as "dibs_i"("dibs_id", "dibs_n")'

/**
 * One aggregate in SQL, for tables as they are known: the statements that lock and count, and what others are made of. A child's expressions stand in a select of their own, in which nothing of the parent can be
 * seen but the key: a name that only the parent has would otherwise be taken from there.
 */
export class AggregateSql {
  readonly key: readonly Column[]
  readonly parent: Table
  readonly child: Table
  readonly spec: AggregateSpec
  readonly schema: string
  /** The columns of the child that say which parent. */
  readonly foreign: readonly Column[]

  /** @param schema our own, as it stands in SQL */
  constructor(parent: Table, child: Table, spec: AggregateSpec, schema: string) {
    this.schema = schema
    this.parent = parent
    this.child = child
    this.spec = spec
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
  get kept(): readonly KeptColumn[] {
    const taken = keyTaken(this.parent, [])
    return this.spec.columns.map(([name], n) => {
      const column = writable(`columns.${name}`, this.parent, name, taken)
      return keepIn(column, `"dibs_d"."dibs_${n}"`)
    })
  }

  get sets(): string {
    return this.kept.map(({ column, value }) => `${column.quoted} = ${value}`).join(', ')
  }

  /** Locks the parents with these ids, in the order of their key; answers the places of those that are there. */
  get lock(): string {
    return this.locking('"dibs_i"."dibs_n"::pg_catalog.text', '')
  }

  /** The same for those that nobody has locked; answers their ids. */
  get lockFree(): string {
    return this.locking('"dibs_i"."dibs_id"', ' skip locked')
  }

  locking(told: string, others: string): string {
    return `select ${told} as "dibs_told" from ${IDS} join ${this.parent.quoted} as ${ROW} on ${this.match('"dibs_i"')}
      order by ${this.order} for no key update of ${ROW}${others}`
  }

  /** Who has locked them. */
  get lockers(): string {
    return lockersOf(this.parent, `exists (select from ${IDS} where ${this.match('"dibs_i"')})`)
  }

  /** The ids that no parent has. One of before a key got another column is none of them. */
  get absent(): string {
    return `select pg_catalog.array_agg("dibs_i"."dibs_id") from ${IDS}
      where pg_catalog.json_array_length("dibs_i"."dibs_id"::pg_catalog.json) operator(pg_catalog.=) ${this.key.length}
        and not exists (select from ${this.parent.quoted} as ${ROW} where ${this.match('"dibs_i"')})`
  }

  /** Both for one id, which is what most ask for: in half the time, since there is less to plan. */
  get one(): { readonly lock: string; readonly recompute: string } {
    const key = this.key.map((_, n) => this.first(n))
    const match = this.key
      .map(({ quoted, equals }, n) => `${ROW}.${quoted} ${equals} ${key[n]}`)
      .join(' and ')
    return {
      lock: `select '1'::text from ${this.parent.quoted} as ${ROW} where ${match} for no key update of ${ROW}`,
      recompute: `with "dibs_w" as (
      update ${this.parent.quoted} as ${ROW} set ${this.sets} from ${this.counted(key)} as "dibs_d"
      where ${match} returning ${this.#written})
    select 'written'::text, '1'::text, ${this.parent.list('"dibs_w".')} from "dibs_w" where not "dibs_w".${this.#wrong}`,
    }
  }

  /** Counts the children of these parents, and writes what comes of it: a row for each id, behind its place; none for one that is not what was written. */
  get recompute(): string {
    return `with "dibs_w" as (
      update ${this.parent.quoted} as ${ROW} set ${this.sets} from ${this.givenCounted}
      where ${this.match('"dibs_g"')} returning ${this.#written})
    select 'written'::text, "dibs_i"."dibs_n"::text, ${this.parent.list('"dibs_w".')}
    from ${IDS} join "dibs_w" on ${this.match('"dibs_i"', '"dibs_w"')} where not "dibs_w".${this.#wrong} order by "dibs_i"."dibs_n"`
  }

  /** A row as it was written, and whether that is what was to be: a trigger may have made something else of it. */
  get #written(): string {
    return `${this.parent.list(`${ROW}.`)}, (${this.differs}) as ${this.#wrong}`
  }

  get #wrong(): string {
    return `"${this.parent.freeName('dibs_wrong')}"`
  }

  /** The same, and answers how many of them are that now, and how many are not. One that was right before may stay as it is. */
  get refresh(): string {
    return `with "dibs_c" as materialized (
      select "dibs_g".*, "dibs_d".*, pg_catalog.row_number() over () as "dibs_n" from ${this.givenCounted}),
    "dibs_w" as (
      update ${this.parent.quoted} as ${ROW} set ${this.sets} from "dibs_c" as "dibs_d" where ${this.match('"dibs_d"')}
      returning "dibs_d"."dibs_n", ${this.differs} as "dibs_differs"),
    "dibs_l" as (
      select pg_catalog.count(*)::pg_catalog.int4 as "dibs_left" from "dibs_c" as "dibs_d" join ${this.parent.quoted} as ${ROW} on ${this.match('"dibs_d"')}
      where (${this.differs}) and not exists (
        select from "dibs_w" where "dibs_w"."dibs_n" operator(pg_catalog.=) "dibs_d"."dibs_n" and not "dibs_w"."dibs_differs"))
    select (select pg_catalog.count(*)::pg_catalog.int4 from "dibs_c") operator(pg_catalog.-) "dibs_l"."dibs_left", "dibs_l"."dibs_left" from "dibs_l"`
  }

  /** The parents that were asked for, each once, however its id is written: the columns of their key, and an id. */
  get given(): string {
    const keys = this.key.map((_, n) => `${this.part('"dibs_i"', n)} as "dibs_k${n}"`)
    const places = this.key.map((_, n) => n + 1).join(', ')
    return `(select ${keys.join(', ')}, pg_catalog.min("dibs_i"."dibs_id") as "dibs_id" from ${IDS} group by ${places}) as "dibs_g"`
  }

  /** These, and what the children of each say. Nothing of the parent stands before it: a column that the child has lost meanwhile would be taken from there. */
  get givenCounted(): string {
    return `${this.given} cross join lateral ${this.counted(this.givenKey)} as "dibs_d"`
  }

  /** What the children of a parent say, whose key this is; it fails for a role that does not see all of them. */
  counted(key: readonly string[]): string {
    const seesAll = `(select ${this.schema}.aggregate_sees_all(${quoteText(this.child.quoted)}))`
    return this.derived(key, [seesAll])
  }

  /** The same, of those that are seen. */
  derived(key: readonly string[], conditions: readonly string[] = []): string {
    const values = this.spec.columns.map(([, expression], n) => `(${expression}\n) as "dibs_${n}"`)
    const match = this.pairs.map((pair, n) => childHas(pair, this.child.own(pair[1]), `${key[n]}`))
    return `(select ${values.join(', ')} from ${this.child.quoted} where ${[...conditions, ...match].join(' and ')})`
  }

  /** The columns of the key, each with that of the child. */
  get pairs(): readonly KeyPair[] {
    return this.foreign.map((foreign, n) => [this.key[n] as Column, foreign])
  }

  get givenKey(): readonly string[] {
    return this.key.map((_, n) => `"dibs_g"."dibs_k${n}"`)
  }

  get differs(): string {
    return this.kept.map(differ).join(' or ')
  }

  get order(): string {
    return this.key.map(({ quoted }) => `${ROW}.${quoted}`).join(', ')
  }

  /** One column of the key of an id. */
  part(from: string, n: number): string {
    return `(${from}."dibs_id"::pg_catalog.json operator(pg_catalog.->>) ${n})::${this.key[n]?.cast}`
  }

  /** The same of the first id that is given. */
  first(n: number): string {
    return `(($1)[1]::pg_catalog.json operator(pg_catalog.->>) ${n})::${this.key[n]?.cast}`
  }

  match(from: '"dibs_i"' | '"dibs_g"' | '"dibs_d"' | '"dibs_m"', row: string = ROW): string {
    return this.key
      .map((column, n) => {
        const value = from === '"dibs_i"' ? this.part(from, n) : `${from}."dibs_k${n}"`
        return `${row}.${column.quoted} ${column.equals} ${value}`
      })
      .join(' and ')
  }
}

export const quoteText = (text: string): string => `${quoteLiteral(text)}::pg_catalog.text`
