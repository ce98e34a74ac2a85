import type { Statement } from '../statements/parse-statements.js'
import type { TableFacts, UniqueIndex } from '../statements/table-facts.js'
import { isRecord } from '../statements/tree-names.js'
import { advisoryLock } from './advisory-locks.js'
import {
  EMPTY,
  everything,
  type Footprint,
  join,
  KEY_SHARE,
  type Lock,
  NO_KEY_UPDATE,
  type Place,
  ROWS,
  SHARE,
  UPDATE,
} from './footprint.js'
import { constantOf, joinKey, keyOf, keysIn, type Values } from './key-values.js'
import { inside, list, type Node, names } from './node.js'

/** What a footprint needs to know of the database. */
export interface Lore {
  table(name: string): TableFacts
  /** Why a call of it may do or see anything; undefined if it does not. */
  surpriseOf(functionName: string): string | undefined
}

/** What one statement reads, locks and leaves, with these parameters. */
export function statementFootprint(statement: Statement, values: Values, lore: Lore): Footprint {
  const { kind, tree, isParsed, text } = statement
  switch (kind) {
    case 'begin':
    case 'savepoint':
    case 'setting':
      return EMPTY
    case 'commit':
      return /^\s*prepare/i.test(text) ? everything('PREPARE TRANSACTION') : { ...EMPTY, ends: 'commit' }
    case 'rollback':
      return { ...EMPTY, ends: 'rollback' }
    // It frees what was locked since the savepoint; what is kept is taken to be held on.
    case 'rollback-to':
      return EMPTY
  }
  if (!isParsed) return everything(`${JSON.stringify(text)} is not understood`)
  return new StatementReader(values, lore).read(tree)
}

const QUERIES = new Set(['SelectStmt', 'InsertStmt', 'UpdateStmt', 'DeleteStmt'])

const STRENGTHS: Readonly<Record<string, number>> = {
  LCS_FORKEYSHARE: KEY_SHARE,
  LCS_FORSHARE: SHARE,
  LCS_FORNOKEYUPDATE: NO_KEY_UPDATE,
  LCS_FORUPDATE: UPDATE,
}

/** They put rows together in the order in which they come. */
const ORDERED_AGGREGATES =
  /^(?:array_agg|(?:string|xml|jsonb?(?:_object)?)_agg|first_value|last_value|nth_value|row_number|lag|lead)$/

/** A table as it stands in a statement. */
interface Mention {
  readonly name: string
  /** Under which its columns may be written. */
  readonly alias: string
  readonly facts: TableFacts
}

class StatementReader {
  readonly #values: Values
  readonly #lore: Lore
  #found: Footprint = EMPTY
  /** An aggregate puts rows together as they come. */
  #gathers = false
  #unsorted: ReadonlySet<string> = new Set()

  constructor(values: Values, lore: Lore) {
    this.#values = values
    this.#lore = lore
  }

  read(tree: unknown): Footprint {
    const [kind = '', node] = isRecord(tree) ? (Object.entries(tree)[0] ?? []) : []
    if (kind === 'LockStmt') this.#readLockTable(node as Node)
    else if (QUERIES.has(kind)) this.#visit(tree, new Set())
    else this.#add(everything(`${kind.replace(/Stmt$/, '')} is not understood in detail`))
    const rows = this.#found.locks.filter(({ seeks, strength }) => seeks && strength > KEY_SHARE)
    const isLocked = (read: Place): boolean => rows.some(({ place }) => place === read)
    if (rows.length > 0) this.#add({ aside: this.#found.reads.filter((read) => !isLocked(read)) })
    if (this.#gathers) this.#add({ disordered: this.#found.touches })
    const returns = list(inside(node, 'returningClause')?.exprs).length > 0
    this.#add({ shows: kind === 'SelectStmt' ? this.#unsorted : returns ? this.#found.touches : new Set() })
    return this.#found
  }

  #add(part: Partial<Footprint>): void {
    this.#found = join(this.#found, { ...EMPTY, ...part })
  }

  /** Everything at any depth; `ctes` are names that are no tables here. */
  #visit(node: unknown, ctes: ReadonlySet<string>): void {
    if (Array.isArray(node)) for (const item of node) this.#visit(item, ctes)
    if (!isRecord(node)) return
    const scope = new Set([...ctes, ...cteNames(node)])
    const call = inside(node, 'FuncCall')
    if (call) this.#readCall(call)
    const select = inside(node, 'SelectStmt')
    if (select) this.#readSelect(select, new Set([...scope, ...cteNames(select)]))
    const insert = inside(node, 'InsertStmt')
    if (insert) this.#readInsert(insert)
    const update = inside(node, 'UpdateStmt')
    if (update) this.#readUpdate(update, new Set([...scope, ...cteNames(update)]))
    const remove = inside(node, 'DeleteStmt')
    if (remove) this.#readDelete(remove, new Set([...scope, ...cteNames(remove)]))
    if (node.MergeStmt) this.#add(everything('MERGE is not understood in detail'))
    for (const value of Object.values(node)) this.#visit(value, scope)
  }

  #mention(range: Node): Mention {
    const relname = `${range.relname}`
    const quote = (name: string): string =>
      /^[a-z_][a-z0-9_$]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`
    const name = [range.schemaname, relname].flatMap((part) => (part ? [quote(`${part}`)] : [])).join('.')
    const facts = this.#lore.table(name)
    if (facts.opaque) this.#add(everything(facts.opaque))
    this.#add({ touches: new Set([relname]) })
    return { name: relname, alias: `${inside(range, 'alias')?.aliasname ?? relname}`, facts }
  }

  /** Tables that a FROM clause names, in joins too; what else stands there is visited by itself. */
  #mentions(from: unknown, ctes: ReadonlySet<string>): Mention[] {
    if (Array.isArray(from)) return from.flatMap((item) => this.#mentions(item, ctes))
    const range = inside(from, 'RangeVar')
    if (range) return !range.schemaname && ctes.has(`${range.relname}`) ? [] : [this.#mention(range)]
    const joined = inside(from, 'JoinExpr')
    return joined ? this.#mentions([joined.larg, joined.rarg], ctes) : []
  }

  #readSelect(select: Node, ctes: ReadonlySet<string>): void {
    const mentions = this.#mentions(select.fromClause, ctes)
    const isAlone = mentions.length === 1 && list(select.fromClause).length === 1
    const clauses = list(select.lockingClause).map((clause) => inside(clause, 'LockingClause') ?? {})
    if (clauses.length > 0 && !isAlone)
      this.#add({ reads: mentions.map((one) => this.#rows(one, select.whereClause, false)) })
    for (const one of mentions) {
      const place = this.#rows(one, select.whereClause, isAlone)
      const own = clauses.filter(({ lockedRels }) => locksThis(lockedRels, one.alias))
      // What a lock by key waits for is what it would have found afterwards. A scan sees the rest as of before.
      if (own.length === 0 || !place.keys || !isAlone) this.#add({ reads: [place] })
      for (const { strength, waitPolicy } of own) {
        this.#add({ locks: [{ place, strength: STRENGTHS[`${strength}`] ?? UPDATE, seeks: true }] })
        if (waitPolicy !== 'LockWaitBlock') this.#add({ tries: [place] })
      }
    }
    const isOne = (one: Mention): boolean => this.#rows(one, select.whereClause, true).keys?.size === 1
    if (isAlone && mentions.every((one) => isOne(one) || isSortedByKey(select, one))) return
    const tables = new Set(mentions.map(({ name }) => name))
    if (picksByOrder(select)) this.#add({ disordered: tables })
    else this.#unsorted = new Set([...this.#unsorted, ...tables])
  }

  #readInsert(insert: Node): void {
    const mention = this.#mention(inside(insert, 'relation') ?? {})
    const { name, facts } = mention
    if (facts.opaqueWrites) this.#add(everything(facts.opaqueWrites))
    const given = list(insert.cols).map((column) => `${inside(column, 'ResTarget')?.name}`)
    const columns = given.length > 0 ? given : facts.columns.map((column) => column.name)
    const rows = rowsOf(insert.selectStmt)
    const left = facts.columns.filter(
      ({ name: column }) =>
        rows?.some((row) => isLeftOut(row[columns.indexOf(column)])) ?? !columns.includes(column),
    )
    this.#add({ draws: new Set(left.flatMap(({ sequence }) => sequence ?? [])), puts: new Set([name]) })
    for (const unique of facts.uniques) {
      const keys = this.#insertedKeys(unique.columns, facts, columns, rows)
      if (keys?.size === 0) continue
      this.#add({ locks: [{ place: placeOf(name, unique, keys), strength: UPDATE, seeks: false }] })
    }
    const primary = facts.uniques.find(({ isPrimary }) => isPrimary)
    const keys = primary && this.#insertedKeys(primary.columns, facts, columns, rows)
    this.#add({ adds: [{ table: name, index: ROWS, keys: keys?.size === 0 ? undefined : keys }] })
    this.#readForeignKeys(facts, (wanted) => this.#insertedKeys(wanted, facts, columns, rows))
    this.#readOnConflict(inside(insert, 'onConflictClause'), mention)
  }

  /** Undefined: any. Empty: none that another row could have. */
  #insertedKeys(
    wanted: readonly string[] | null,
    { columns: all }: TableFacts,
    columns: readonly string[],
    rows: readonly (readonly unknown[])[] | undefined,
  ): ReadonlySet<string> | undefined {
    if (!wanted || !rows) return undefined
    const keys = new Set<string>()
    for (const row of rows) {
      const parts: string[] = []
      let isFresh = false
      for (const name of wanted) {
        const column = all.find((one) => one.name === name)
        const value = row[columns.indexOf(name)]
        if (isLeftOut(value) && column?.default !== 'some') isFresh = true
        else {
          const key = isLeftOut(value) ? undefined : keyOf(constantOf(value, this.#values), column)
          if (key === undefined) return undefined
          parts.push(key)
        }
      }
      if (!isFresh) keys.add(joinKey(parts))
    }
    return keys
  }

  /** The parent's row is looked for and locked, weakly. */
  #readForeignKeys(
    { foreignKeys }: TableFacts,
    keysOf: (columns: readonly string[]) => ReadonlySet<string> | undefined,
  ): void {
    for (const { columns, table, isToPrimary } of foreignKeys) {
      const found = isToPrimary ? keysOf(columns) : undefined
      const place = { table, index: ROWS, keys: found }
      if (found?.size !== 0)
        this.#add({ locks: [{ place, strength: KEY_SHARE, seeks: true }], touches: new Set([table]) })
    }
  }

  #readOnConflict(clause: Node | undefined, { name, facts }: Mention): void {
    if (clause?.action !== 'ONCONFLICT_UPDATE') return
    const inferred = list(inside(clause, 'infer')?.indexElems).map((one) => inside(one, 'IndexElem')?.name)
    const primary = facts.uniques.find(({ isPrimary }) => isPrimary)
    const isByKey =
      primary?.columns?.length === inferred.length &&
      primary.columns.every((column) => inferred.includes(column))
    // Else the row is found by another key than the one that rows are known by.
    const claimed = this.#found.locks.find(({ place }) => place.table === name && place.index === ROWS)?.place
    const place = isByKey && claimed ? claimed : { table: name, index: ROWS }
    this.#readChange(place, facts, clause.targetList)
    this.#add({ locks: [{ place, strength: UPDATE, seeks: false }] })
  }

  #readUpdate(update: Node, ctes: ReadonlySet<string>): void {
    const mention = this.#mention(inside(update, 'relation') ?? {})
    const { name, facts } = mention
    if (facts.opaqueWrites) this.#add(everything(facts.opaqueWrites))
    const others = this.#mentions(update.fromClause, ctes)
    const isAlone = list(update.fromClause).length === 0
    const place = this.#rows(mention, update.whereClause, isAlone)
    const strength = this.#readChange(place, facts, update.targetList)
    this.#add({
      locks: [{ place, strength, seeks: true }],
      puts: new Set([name]),
      reads: [
        ...(place.keys && isAlone ? [] : [place]),
        ...others.map((one) => this.#rows(one, update.whereClause, false)),
      ],
    })
  }

  /** What a SET list does to keys. @returns the strength of the row's lock */
  #readChange(place: Place, facts: TableFacts, targets: unknown): number {
    const { table } = place
    const set = list(targets).map((target) => `${inside(target, 'ResTarget')?.name}`)
    const touched = facts.uniques.filter(
      ({ columns }) => !columns || columns.some((one) => set.includes(one)),
    )
    for (const unique of touched) {
      const entries = placeOf(table, unique, undefined)
      this.#add({ locks: [{ place: entries, strength: UPDATE, seeks: false }] })
      if (unique.isPrimary) this.#add({ adds: [entries] })
    }
    if (facts.referenced?.columns.some((one) => set.includes(one)))
      this.#add(everything(`${facts.referenced.by} refers to ${table}, whose key is changed`))
    const moved = facts.foreignKeys.filter(({ columns }) => columns.some((one) => set.includes(one)))
    this.#readForeignKeys({ ...facts, foreignKeys: moved }, () => undefined)
    const hasMoved = touched.some(({ isPrimary }) => isPrimary)
    this.#add({ changes: [hasMoved ? { table, index: ROWS } : place], puts: new Set([table]) })
    return touched.length > 0 ? UPDATE : NO_KEY_UPDATE
  }

  #readDelete(remove: Node, ctes: ReadonlySet<string>): void {
    const mention = this.#mention(inside(remove, 'relation') ?? {})
    const { name, facts } = mention
    if (facts.opaqueWrites) this.#add(everything(facts.opaqueWrites))
    if (facts.referenced)
      this.#add(everything(`${facts.referenced.by} refers to ${name}, of which rows are deleted`))
    const others = this.#mentions(remove.usingClause, ctes)
    const isAlone = list(remove.usingClause).length === 0
    const place = this.#rows(mention, remove.whereClause, isAlone)
    const keys: Lock[] = facts.uniques
      .filter(({ isPrimary }) => !isPrimary)
      .map((unique) => ({ place: placeOf(name, unique, undefined), strength: UPDATE, seeks: false }))
    this.#add({
      locks: [{ place, strength: UPDATE, seeks: true }, ...keys],
      changes: [place],
      reads: [
        ...(place.keys && isAlone ? [] : [place]),
        ...others.map((one) => this.#rows(one, remove.whereClause, false)),
      ],
    })
  }

  /** Rows of a table that a condition can be true for. */
  #rows({ name, alias, facts }: Mention, where: unknown, isAlone: boolean): Place {
    const primary = facts.uniques.find(({ isPrimary }) => isPrimary)
    const columns = (primary?.columns ?? []).flatMap(
      (column) => facts.columns.find((one) => one.name === column) ?? [],
    )
    const isColumn = (field: unknown, column: string): boolean => {
      const parts = names(inside(field, 'ColumnRef')?.fields)
      if (parts.at(-1) !== column) return false
      return parts.length === 1 ? isAlone : parts.length === 2 && parts[0] === alias
    }
    return { table: name, index: ROWS, keys: keysIn(where, columns, isColumn, this.#values) }
  }

  #readCall(call: Node): void {
    const parts = names(call.funcname)
    const bare = parts.at(-1) ?? ''
    const lock = advisoryLock(
      bare,
      list(call.args).map((argument) => constantOf(argument, this.#values)),
    )
    if (lock) return void this.#add(lock)
    if (bare === 'nextval') {
      const sequence = constantOf(list(call.args)[0], this.#values)
      const name = /"?([^".]+)"?$/.exec(sequence ?? '')?.[1]
      return void this.#add(name ? { draws: new Set([name]) } : everything('nextval of an unknown sequence'))
    }
    if (ORDERED_AGGREGATES.test(bare) && call.agg_order === undefined) this.#gathers = true
    const surprise = this.#lore.surpriseOf(parts.join('.'))
    if (surprise) this.#add(everything(surprise))
  }

  #readLockTable(lock: Node): void {
    const mentions = list(lock.relations).map((one) => this.#mention(inside(one, 'RangeVar') ?? {}))
    const tables = mentions.map(({ name }) => name)
    this.#add({ shuts: new Set(tables), reads: tables.map((table) => ({ table, index: ROWS })) })
  }
}

const placeOf = (
  table: string,
  { name, isPrimary }: UniqueIndex,
  keys: ReadonlySet<string> | undefined,
): Place => ({ table, index: isPrimary ? ROWS : name, keys })

function cteNames(node: Node): string[] {
  const clause = node.withClause
  return isRecord(clause) ? list(clause.ctes).map((cte) => `${inside(cte, 'CommonTableExpr')?.ctename}`) : []
}

/** FOR UPDATE OF names aliases; without OF all are locked. */
function locksThis(lockedRels: unknown, alias: string): boolean {
  const rels = list(lockedRels).map((rel) => inside(rel, 'RangeVar')?.relname)
  return rels.length === 0 || rels.includes(alias)
}

/** Of INSERT … VALUES; undefined for a query. DEFAULT VALUES is one row with nothing in it. */
function rowsOf(source: unknown): readonly (readonly unknown[])[] | undefined {
  if (source === undefined) return [[]]
  const rows = list(inside(source, 'SelectStmt')?.valuesLists)
  return rows.length > 0 ? rows.map((row) => list(inside(row, 'List')?.items)) : undefined
}

const isLeftOut = (value: unknown): boolean =>
  value === undefined || inside(value, 'SetToDefault') !== undefined

/** By something that no two rows have in common. */
function isSortedByKey(select: Node, { facts }: Mention): boolean {
  const by = list(select.sortClause).map((sort) =>
    inside(inside(inside(sort, 'SortBy'), 'node'), 'ColumnRef'),
  )
  const columns = by.map((column) => names(column?.fields).at(-1))
  return facts.uniques.some((unique) => unique.columns?.every((name) => columns.includes(name)))
}

/** LIMIT and DISTINCT ON leave rows out. */
const picksByOrder = ({ limitCount, distinctClause }: Node): boolean =>
  limitCount !== undefined || list(distinctClause).some((one) => isRecord(one) && Object.keys(one).length > 0)
