import { InvalidInputError } from '../../errors.js'
import { quoteLiteral } from '../../postgres/statement.js'
import type { Column, Table } from '../catalog/table.js'
import { reservedByKey } from '../row-id.js'
import { lockersOf } from '../row-write.js'
import { ROW, writable } from '../sql-values.js'
import type { AggregateSpec } from './aggregate-spec.js'
import { type KeyPair, matchByChildIndex } from './key-pair.js'
import { differsSql, type TotalColumn, toTotalColumn } from './total-column.js'

/** An id in our statements: a JSON array with the key's columns as text. `$1` is an array of ids. */
export const IDS = 'pg_catalog.unnest($1) with ordinality as "dibs_i"("dibs_id", "dibs_n")'

/**
 * The SQL of one aggregate, for the current definitions of both tables. Expressions over the child stand in a subselect that
 * sees only the key of the parent. Otherwise a name that only the parent has would resolve to the parent.
 */
export class AggregateSql {
  readonly key: readonly Column[]
  readonly parent: Table
  readonly child: Table
  readonly spec: AggregateSpec
  readonly schema: string
  /** The columns of the child that refer to the parent. */
  readonly foreignKey: readonly Column[]

  /** @param schema our own, as it stands in SQL */
  constructor(parent: Table, child: Table, spec: AggregateSpec, schema: string) {
    this.schema = schema
    this.parent = parent
    this.child = child
    this.spec = spec
    this.key = parent.key
    this.foreignKey = spec.foreignKey.map((name) => child.column('foreignKey', name))
    if (this.key.length === 0)
      throw new InvalidInputError('parent', `names ${parent.name.input}, which has no primary key`)
    if (this.key.length !== this.foreignKey.length)
      throw new InvalidInputError(
        'foreignKey',
        `must name ${this.key.length} of the child's columns, as the primary key of ${parent.name.input} has (${this.key.map(({ name }) => name).join(', ')}), not ${this.foreignKey.length}`,
      )
  }

  /** The parent's columns that hold totals. */
  get totals(): readonly TotalColumn[] {
    const reserved = reservedByKey(this.parent, [])
    return this.spec.columns.map(([name], n) => {
      const column = writable(`columns.${name}`, this.parent, name, reserved)
      return toTotalColumn(column, `"dibs_d"."dibs_${n}"`)
    })
  }

  get sets(): string {
    return this.totals.map(({ column, value }) => `${column.quoted} = ${value}`).join(', ')
  }

  /** Locks the parents with these ids, in the order of their key. Returns the positions of the ids that exist. */
  get lock(): string {
    return this.lockSql('"dibs_i"."dibs_n"::pg_catalog.text', '')
  }

  /** Locks only parents that no other session has locked. Returns their ids. */
  get lockAvailable(): string {
    return this.lockSql('"dibs_i"."dibs_id"', ' skip locked')
  }

  lockSql(detail: string, suffix: string): string {
    return `select ${detail} as "dibs_detail" from ${IDS} join ${this.parent.quoted} as ${ROW} on ${this.match('"dibs_i"')}
      order by ${this.order} for no key update of ${ROW}${suffix}` // guard: aggregate.recompute-order
  }

  /** Reads which sessions have locked the parents. */
  get lockers(): string {
    return lockersOf(this.parent, `exists (select from ${IDS} where ${this.match('"dibs_i"')})`)
  }

  /** The ids without a parent. Ids from before the key got another column do not count as missing. */
  get missingIds(): string {
    return `select pg_catalog.array_agg("dibs_i"."dibs_id") from ${IDS}
      where pg_catalog.json_array_length("dibs_i"."dibs_id"::pg_catalog.json) operator(pg_catalog.=) ${this.key.length}
        and not exists (select from ${this.parent.quoted} as ${ROW} where ${this.match('"dibs_i"')})`
  }

  /** Both statements for one id, the most frequent case. They take half the time, because there is less to plan. */
  get forSingleId(): { readonly lock: string; readonly recompute: string } {
    const key = this.key.map((_, n) => this.firstKeyPart(n))
    const match = this.key
      .map(({ quoted, equals }, n) => `${ROW}.${quoted} ${equals} ${key[n]}`)
      .join(' and ')
    return {
      lock: `select '1'::text from ${this.parent.quoted} as ${ROW} where ${match} for no key update of ${ROW}`,
      recompute: `with "dibs_w" as (
      update ${this.parent.quoted} as ${ROW} set ${this.sets} from ${this.countChildren(key)} as "dibs_d"
      where ${match} returning ${this.#writtenColumns})
    select 'written'::text, '1'::text, ${this.parent.list('"dibs_w".')} from "dibs_w" where not "dibs_w".${this.#differsAlias}`,
    }
  }

  /**
   * Counts the children of these parents and writes the totals. Returns a row for each id after its position, but none if a
   * trigger changed the written totals.
   */
  get recompute(): string {
    return `with "dibs_w" as (
      update ${this.parent.quoted} as ${ROW} set ${this.sets} from ${this.requestedTotals}
      where ${this.match('"dibs_g"')} returning ${this.#writtenColumns})
    select 'written'::text, "dibs_i"."dibs_n"::text, ${this.parent.list('"dibs_w".')}
    from ${IDS} join "dibs_w" on ${this.match('"dibs_i"', '"dibs_w"')} where not "dibs_w".${this.#differsAlias} order by "dibs_i"."dibs_n"`
  }

  /** The written row, and whether its totals differ from the children: a trigger may have changed them. */
  get #writtenColumns(): string {
    return `${this.parent.list(`${ROW}.`)}, (${this.differs}) as ${this.#differsAlias}`
  }

  get #differsAlias(): string {
    return `"${this.parent.unusedName('dibs_wrong')}"`
  }

  /**
   * Recomputes the parents. Returns how many have correct totals now, and how many have not. A parent that was correct before
   * counts as correct.
   */
  get refresh(): string {
    return `with "dibs_c" as materialized (
      select "dibs_g".*, "dibs_d".*, pg_catalog.row_number() over () as "dibs_n" from ${this.requestedTotals}),
    "dibs_w" as (
      update ${this.parent.quoted} as ${ROW} set ${this.sets} from "dibs_c" as "dibs_d" where ${this.match('"dibs_d"')}
      returning "dibs_d"."dibs_n", ${this.differs} as "dibs_differs"),
    "dibs_l" as (
      select pg_catalog.count(*)::pg_catalog.int4 as "dibs_left" from "dibs_c" as "dibs_d" join ${this.parent.quoted} as ${ROW} on ${this.match('"dibs_d"')}
      where (${this.differs}) and not exists (
        select from "dibs_w" where "dibs_w"."dibs_n" operator(pg_catalog.=) "dibs_d"."dibs_n" and not "dibs_w"."dibs_differs"))
    select (select pg_catalog.count(*)::pg_catalog.int4 from "dibs_c") operator(pg_catalog.-) "dibs_l"."dibs_left", "dibs_l"."dibs_left" from "dibs_l"`
  }

  /** The requested parents without duplicates: the columns of their key, and an id. */
  get requestedParents(): string {
    const keys = this.key.map((_, n) => `${this.keyPart('"dibs_i"', n)} as "dibs_k${n}"`)
    const places = this.key.map((_, n) => n + 1).join(', ')
    return `(select ${keys.join(', ')}, pg_catalog.min("dibs_i"."dibs_id") as "dibs_id" from ${IDS} group by ${places}) as "dibs_g"`
  }

  /**
   * The requested parents with the totals of their children. No table of the parent precedes the subselect: a column that the
   * child has just lost would resolve to the parent.
   */
  get requestedTotals(): string {
    return `${this.requestedParents} cross join lateral ${this.countChildren(this.requestedKey)} as "dibs_d"`
  }

  /** The totals of the children of one parent, by its key. Fails for a role that does not see all children. */
  countChildren(key: readonly string[]): string {
    const seesAll = `(select ${this.schema}.aggregate_require_full_visibility(${quoteText(this.child.quoted)}))`
    return this.derive(key, [seesAll])
  }

  /** The totals of the children that the role can see. */
  derive(key: readonly string[], conditions: readonly string[] = []): string {
    const values = this.spec.columns.map(([, expression], n) => `(${expression}\n) as "dibs_${n}"`)
    const match = this.keyPairs.map((pair, n) =>
      matchByChildIndex(pair, this.child.qualify(pair[1]), `${key[n]}`),
    )
    return `(select ${values.join(', ')} from ${this.child.quoted} where ${[...conditions, ...match].join(' and ')})`
  }

  /** The columns of the key, each with the child's column that refers to it. */
  get keyPairs(): readonly KeyPair[] {
    return this.foreignKey.map((foreign, n) => [this.key[n] as Column, foreign])
  }

  get requestedKey(): readonly string[] {
    return this.key.map((_, n) => `"dibs_g"."dibs_k${n}"`)
  }

  get differs(): string {
    return this.totals.map(differsSql).join(' or ')
  }

  get order(): string {
    return this.key.map(({ quoted }) => `${ROW}.${quoted}`).join(', ')
  }

  /** One column of the key, read from an id. */
  keyPart(from: string, n: number): string {
    return `(${from}."dibs_id"::pg_catalog.json operator(pg_catalog.->>) ${n})::${this.key[n]?.cast}`
  }

  /** One column of the key, read from the first id. */
  firstKeyPart(n: number): string {
    return `(($1)[1]::pg_catalog.json operator(pg_catalog.->>) ${n})::${this.key[n]?.cast}`
  }

  match(from: '"dibs_i"' | '"dibs_g"' | '"dibs_d"' | '"dibs_m"', row: string = ROW): string {
    return this.key
      .map((column, n) => {
        const value = from === '"dibs_i"' ? this.keyPart(from, n) : `${from}."dibs_k${n}"`
        return `${row}.${column.quoted} ${column.equals} ${value}`
      })
      .join(' and ')
  }
}

export const quoteText = (text: string): string => `${quoteLiteral(text)}::pg_catalog.text`
