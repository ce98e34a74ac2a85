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
import { InsertedRows } from './inserted-rows.js'
import { conjuncts, constantOf, keysIn, type Values } from './key-values.js'
import { inside, list, type Node, names, tableName } from './node.js'
import { gathersRows, isSortedByKey, picksByOrder, roundsSums } from './row-order.js'
import { asksForTime, isStamp, isTimeWord } from './times.js'

/** What a footprint needs to know of the database. */
export interface Lore {
  table(name: string): TableFacts
  /** Why a call of it may do or see anything; undefined if it does not. */
  surpriseOf(functionName: string): string | undefined
  /** There is no function of the user's of that name. */
  isBuiltIn(functionName: string): boolean
  /** The user has made an operator of that name. */
  isOwnOperator(name: string): boolean
  /** A cast to a type of that name may call a function of the user's, or check a domain. */
  isOwnCast(typeName: string): boolean
  /** A function that was met and may change the isolation level or the search path of its session. */
  readonly setter: string | undefined
}

/** What may stand in a statement for it to be understood; anything else makes it touch everything. */
const KNOWN_NODES = new Set(
  (
    'SelectStmt InsertStmt UpdateStmt DeleteStmt ResTarget ColumnRef String A_Star A_Const ParamRef TypeCast A_Expr ' +
    'BoolExpr NullTest BooleanTest FuncCall RangeVar JoinExpr RangeSubselect RangeFunction SubLink SortBy List A_ArrayExpr CaseExpr ' +
    'CaseWhen CoalesceExpr MinMaxExpr SetToDefault LockingClause CommonTableExpr MultiAssignRef RowExpr ' +
    'SQLValueFunction IndexElem WindowDef Integer Float Boolean CollateClause'
  ).split(' '),
)

const SYSTEM_COLUMNS = new Set(['xmin', 'xmax', 'cmin', 'cmax', 'ctid', 'tableoid'])

const STRENGTHS: Readonly<Record<string, number>> = {
  LCS_FORKEYSHARE: KEY_SHARE,
  LCS_FORSHARE: SHARE,
  LCS_FORNOKEYUPDATE: NO_KEY_UPDATE,
  LCS_FORUPDATE: UPDATE,
}

const NO_NAMES: ReadonlySet<string> = new Set()

/** A table as it stands in a statement. */
interface Mention {
  readonly name: string
  /** Under which its columns may be written. */
  readonly alias: string
  /** Its columns have other names here. */
  readonly isRenamed: boolean
  readonly facts: TableFacts
}

/** Reads one statement's tree. */
export class StatementReader {
  readonly #values: Values
  readonly #lore: Lore
  #found: Footprint = EMPTY
  /** Something puts rows together as they come. */
  #gathers = false
  #unsorted: ReadonlySet<string> = NO_NAMES
  /** Within it, an INSERT copies rows as they come. */
  #copies = false
  /** All columns of some table, by a star. */
  #namesAll = false
  /** Columns that it names; those that it names with their table; and names that it gives itself. */
  readonly #columns = new Set<string>()
  readonly #qualified = new Set<string>()
  readonly #given = new Set<string>()
  /** Names of tables, as far as columns can be written with them. */
  readonly #aliases = new Set<string>()
  /** Tables that it reads. */
  readonly #read = new Map<string, TableFacts>()
  /** Within another statement: what the server counts is not about this one. */
  #depth = 0

  constructor(values: Values, lore: Lore) {
    this.#values = values
    this.#lore = lore
  }

  read(tree: unknown): Footprint {
    const [kind = '', node] = isRecord(tree) ? (Object.entries(tree)[0] ?? []) : []
    if (kind === 'LockStmt') return { ...everything('LOCK TABLE'), isEarly: true }
    if (!/^(?:Select|Insert|Update|Delete)Stmt$/.test(kind))
      return everything(`${kind.replace(/Stmt$/, '')} is not understood in detail`)
    this.#visit(tree, NO_NAMES)
    const inner = isRecord(node) ? node : {}
    this.#readQualified()
    this.#readAside()
    this.#readTimes(tree, inner)
    const disordered = this.#gathers ? this.#found.touches : this.#copies ? this.#unsorted : NO_NAMES
    this.#add({ disordered, shows: this.#shown(kind, inner) })
    // Which rows it waits for, and which it leaves out, it decides at several times.
    if (
      this.#found.locks.filter(({ seeks }) => seeks).some(({ place }, i) => i > 0 || place.keys?.size !== 1)
    )
      this.#add({ reads: this.#found.conditional })
    if (this.#found.draws.size > 0 && !drawsOnce(kind, inner))
      this.#add(everything('it draws numbers for several rows, or for one that it may have to wait for'))
    return this.#found
  }

  #add(part: Partial<Footprint>): void {
    this.#found = join(this.#found, { ...EMPTY, ...part })
  }

  #readAside(): void {
    const rows = this.#found.locks.filter(({ seeks, strength }) => seeks && strength > KEY_SHARE)
    const isLocked = (read: Place): boolean => rows.some(({ place }) => place === read)
    if (rows.length > 0) this.#add({ aside: this.#found.reads.filter((read) => !isLocked(read)) })
  }

  #readTimes(tree: unknown, { targetList, returningClause }: Node): void {
    const asks = asksForTime(tree) || this.#values?.some(isTimeWord) === true
    const tells = asksForTime(targetList) || asksForTime(returningClause)
    this.#add({ timed: this.#timed, asksForTime: asks, tellsTime: asks && tells })
    if (asks) this.#add({ stamps: this.#found.puts })
  }

  /** `a.fields` may be a function that takes the row. */
  #readQualified(): void {
    const known = new Set([...this.#read.values()].flatMap(({ columns }) => columns.map(({ name }) => name)))
    const other = [...this.#qualified].find((name) => !known.has(name) && !this.#given.has(name))
    if (other !== undefined) this.#add(everything(`${other} is no column of a table that it names`))
  }

  /** Tables of which it looks at times: who came first had the earlier one. */
  get #timed(): ReadonlySet<string> {
    // `to_jsonb(a)`: the row as a whole.
    const namesAll = this.#namesAll || [...this.#aliases].some((alias) => this.#columns.has(alias))
    const isTimed = ({ columns }: TableFacts): boolean =>
      columns.some(({ name, isTime }) => isTime && (namesAll || this.#columns.has(name)))
    return new Set([...this.#read].flatMap(([table, facts]) => (isTimed(facts) ? table : [])))
  }

  /** Tables of which several rows come back in no order. */
  #shown(kind: string, node: Node): ReadonlySet<string> {
    if (kind === 'SelectStmt') return this.#unsorted
    const isQuery = kind === 'InsertStmt' && new InsertedRows(node, [], undefined).rows === undefined
    if (kind === 'InsertStmt' && !isQuery) return NO_NAMES
    if (node.returningClause !== undefined) return this.#found.touches
    return isQuery ? this.#unsorted : NO_NAMES
  }

  /** Everything at any depth; `ctes` are names that are no tables here. */
  #visit(node: unknown, ctes: ReadonlySet<string>): void {
    if (Array.isArray(node)) for (const item of node) this.#visit(item, ctes)
    if (!isRecord(node)) return
    for (const [key, value] of Object.entries(node)) {
      if (/^[A-Z]/.test(key) && !KNOWN_NODES.has(key))
        this.#add(everything(`${key.replace(/Stmt$/, '')} is not understood in detail`))
      if (/^(?:Select|Insert|Update|Delete)Stmt$/.test(key) && isRecord(value))
        this.#visitStatement(key, value, ctes)
      else {
        if (isRecord(value)) this.#readNode(key, value)
        this.#visit(value, ctes)
      }
    }
  }

  #visitStatement(kind: string, node: Node, outer: ReadonlySet<string>): void {
    this.#depth++
    const ctes = this.#visitWith(node, outer)
    if (kind === 'SelectStmt') this.#readSelect(node, ctes)
    else if (kind === 'InsertStmt') this.#readInsert(node)
    else if (kind === 'UpdateStmt') this.#readUpdate(node, ctes)
    else this.#readDelete(node, ctes)
    for (const [key, value] of Object.entries(node)) {
      // Both sides of a UNION are queries without a name for what they are.
      if ((key === 'larg' || key === 'rarg') && isRecord(value))
        this.#visitStatement('SelectStmt', value, ctes)
      else if (key !== 'withClause') this.#visit(value, ctes)
    }
    this.#depth--
  }

  /** In `with a as (select … from a)` the inner name is the table, and the outer one is not. */
  #visitWith({ withClause }: Node, outer: ReadonlySet<string>): ReadonlySet<string> {
    if (!isRecord(withClause)) return outer
    const scope = new Set(outer)
    const ctes = list(withClause.ctes).map((cte) => inside(cte, 'CommonTableExpr') ?? {})
    if (withClause.recursive) for (const { ctename } of ctes) scope.add(`${ctename}`)
    for (const cte of ctes) {
      this.#visit(cte, new Set(scope))
      scope.add(`${cte.ctename}`)
    }
    return scope
  }

  #readNode(kind: string, node: Node): void {
    if (kind === 'FuncCall') {
      this.#readCall(node)
      this.#given.add(names(node.funcname).at(-1) ?? '') // what its column is called
    } else if (kind === 'TypeCast') this.#readCast(node)
    else if (kind === 'ResTarget') this.#given.add(`${node.name}`)
    else if (kind === 'SubLink') this.#gathers ||= node.subLinkType === 'ARRAY_SUBLINK'
    else if (kind === 'A_Expr') {
      const operator = names(node.name).at(-1) ?? ''
      if (this.#lore.isOwnOperator(operator)) this.#add(everything(`it uses the operator ${operator}`))
    } else if (kind === 'ColumnRef') {
      const column = names(node.fields).at(-1)
      this.#namesAll ||= JSON.stringify(node.fields).includes('"A_Star"')
      if (column !== undefined && SYSTEM_COLUMNS.has(column)) this.#add(everything(`it reads ${column}`))
      if (column !== undefined) this.#columns.add(column)
      if (column !== undefined && list(node.fields).length > 1) this.#qualified.add(column)
    }
    const alias = inside(node, 'alias')
    if (alias) for (const name of [alias.aliasname, ...names(alias.colnames)]) this.#given.add(`${name}`)
    for (const name of names(node.aliascolnames)) this.#given.add(`${name}`)
  }

  #readCast({ typeName }: Node): void {
    const type = isRecord(typeName) ? names(typeName.names).at(-1) : undefined
    if (type !== undefined && this.#lore.isOwnCast(type)) this.#add(everything(`it casts to ${type}`))
  }

  #mention(range: Node): Mention {
    const relname = `${range.relname}`
    const facts = this.#lore.table(tableName(range))
    if (facts.opaque) this.#add(everything(facts.opaque))
    this.#add({ touches: new Set([relname]) })
    this.#read.set(relname, facts)
    const alias = inside(range, 'alias')
    this.#aliases.add(`${alias?.aliasname ?? relname}`)
    return {
      name: relname,
      alias: `${alias?.aliasname ?? relname}`,
      isRenamed: alias?.colnames !== undefined,
      facts,
    }
  }

  /** Tables that a FROM clause names, in joins too; what else stands there is visited by itself. */
  #mentions(from: unknown, ctes: ReadonlySet<string>): Mention[] {
    if (Array.isArray(from)) return from.flatMap((item) => this.#mentions(item, ctes))
    const range = inside(from, 'RangeVar')
    if (range) return !range.schemaname && ctes.has(`${range.relname}`) ? [] : [this.#mention(range)]
    const joined = inside(from, 'JoinExpr')
    const found = joined ? this.#mentions([joined.larg, joined.rarg], ctes) : []
    // `(a join b) as c` hides the names within.
    return joined?.alias === undefined ? found : found.map((one) => ({ ...one, isRenamed: true }))
  }

  #readSelect(select: Node, ctes: ReadonlySet<string>): void {
    const mentions = this.#mentions(select.fromClause, ctes)
    const isAlone = mentions.length === 1 && inside(list(select.fromClause)[0], 'RangeVar') !== undefined
    const clauses = list(select.lockingClause).map((clause) => inside(clause, 'LockingClause') ?? {})
    if (clauses.length > 0 && mentions.length < countTables(select.fromClause))
      this.#add(everything('it locks what another query finds'))
    const isOrdered =
      isAlone &&
      mentions.every(
        (one) => this.#isOne(one, select) || (!one.isRenamed && isSortedByKey(select, one.facts)),
      )
    for (const one of mentions) {
      const own = clauses.filter(({ lockedRels }) => locksThis(lockedRels, one.alias))
      this.#readRows(one, select.whereClause, { isAlone, isOrdered }, own)
    }
    if (isOrdered) return
    const tables = new Set(mentions.map(({ name }) => name))
    // Of rows that another query finds, or both sides of a UNION, any table may be behind it.
    const isPlain = select.larg === undefined && mentions.length === countTables(select.fromClause)
    if (picksByOrder(select) && !isPlain) this.#gathers = true
    if (picksByOrder(select)) this.#add({ disordered: tables })
    else this.#unsorted = new Set([...this.#unsorted, ...tables])
  }

  #readRows(one: Mention, where: unknown, scan: Scan, clauses: readonly Node[]): void {
    const place = this.#rows(one, where, scan.isAlone)
    if (clauses.length === 0) this.#add({ reads: [place] })
    for (const { strength: name, waitPolicy } of clauses) {
      const strength = STRENGTHS[`${name}`] ?? UPDATE
      this.#readLock({ place, strength, seeks: true }, one, where, scan)
      // It does not wait for one who changes the row but for its key, and sees it as it was.
      if (strength === KEY_SHARE) this.#add({ reads: [place] })
      if (waitPolicy !== 'LockWaitBlock') this.#add({ tries: [place] })
    }
  }

  /**
   * A lock of rows. What one by key waits for is what it would have found afterwards, since it looks again; unless a further
   * condition holds only afterwards. A scan, and a join, see the rest as of before.
   */
  #readLock(lock: Lock, one: Mention, where: unknown, scan: Scan, sure = lock.strength): void {
    const { place } = lock
    const { isAlone, isOrdered } = scan
    this.#add({ locks: [lock] })
    // Of several rows, it comes to the first that lies there first. Within another query nobody counts them.
    if (!isOrdered && place.keys?.size !== 1)
      this.#add({ [this.#depth === 1 ? 'shows' : 'disordered']: new Set([one.name]) })
    if (!place.keys || !isAlone) return void this.#add({ reads: [place] })
    const isKeyAlone = conjuncts(where).length === primaryOf(one.facts)?.columns?.length
    if (!isKeyAlone) this.#add({ conditional: [place] })
    if (this.#depth === 1) this.#add({ holds: [{ ...lock, strength: sure }] })
  }

  #isOne(one: Mention, { whereClause }: Node): boolean {
    return one.facts.uniques.some((unique) => this.#keys(one, whereClause, unique.columns, true)?.size === 1)
  }

  #readInsert(insert: Node): void {
    const { name, facts } = this.#mention(inside(insert, 'relation') ?? {})
    if (facts.opaqueWrites) this.#add(everything(facts.opaqueWrites))
    const inserted = new InsertedRows(insert, facts.columns, this.#values)
    this.#add({ draws: inserted.draws, puts: new Set([name]) })
    const isStamped = facts.columns.some((column) => isStamp(column) && inserted.mayLeaveOut(column))
    if (isStamped) this.#add({ stamps: new Set([name]) })
    // Where nobody would look for a time.
    if (inserted.holds((value, column) => asksForTime(value) && !column?.isTime))
      this.#add({ timed: new Set([name]) })
    for (const unique of facts.uniques) {
      const keys = inserted.keysOf(unique.columns)
      if (keys?.size === 0) continue
      this.#add({ locks: [{ place: placeOf(name, unique, keys), strength: UPDATE, seeks: false }] })
    }
    const keys = inserted.keysOf(primaryOf(facts)?.columns ?? null)
    const place = { table: name, index: ROWS, keys: keys?.size === 0 ? undefined : keys }
    this.#add({ adds: [place] })
    this.#readForeignKeys(facts, (wanted) => inserted.keysOf(wanted))
    this.#copies ||= !inserted.rows && this.#depth > 1
    const conflict = inside(insert, 'onConflictClause')
    // Of several rows with one key, the first to come counts.
    if (conflict && !inserted.rows) this.#gathers = true
    if (conflict?.action === 'ONCONFLICT_UPDATE') this.#readOnConflict(conflict, place, facts)
  }

  /** The parent's row is looked for and locked, weakly. */
  #readForeignKeys(
    { foreignKeys }: TableFacts,
    keysOf: (columns: readonly string[]) => ReadonlySet<string> | undefined,
  ): void {
    for (const { columns, table, schema, isToPrimary } of foreignKeys) {
      const found = isToPrimary ? keysOf(columns) : undefined
      const place = { table, schema, index: ROWS, keys: found }
      if (found?.size !== 0)
        this.#add({ locks: [{ place, strength: KEY_SHARE, seeks: true }], touches: new Set([table]) })
    }
  }

  #readOnConflict(clause: Node, added: Place, facts: TableFacts): void {
    const inferred = list(inside(clause, 'infer')?.indexElems).map((one) => inside(one, 'IndexElem')?.name)
    const primary = primaryOf(facts)
    const isByKey =
      primary?.columns?.length === inferred.length &&
      primary.columns.every((column) => inferred.includes(column))
    // Else the row is found by another key than the one that rows are known by.
    const place = isByKey ? added : { table: added.table, index: ROWS }
    this.#readChange(place, facts, clause.targetList)
    this.#add({ locks: [{ place, strength: UPDATE, seeks: false }] })
  }

  #readUpdate(update: Node, ctes: ReadonlySet<string>): void {
    const mention = this.#mention(inside(update, 'relation') ?? {})
    if (mention.facts.opaqueWrites) this.#add(everything(mention.facts.opaqueWrites))
    const isAlone = this.#readOthers(update.fromClause, update.whereClause, ctes)
    const place = this.#rows(mention, update.whereClause, isAlone)
    const strength = this.#readChange(place, mention.facts, update.targetList)
    // A key that is set to what it was takes the weaker lock.
    const sure = Math.min(strength, NO_KEY_UPDATE)
    const scan = { isAlone, isOrdered: false }
    this.#readLock({ place, strength, seeks: true }, mention, update.whereClause, scan, sure)
  }

  #readDelete(remove: Node, ctes: ReadonlySet<string>): void {
    const mention = this.#mention(inside(remove, 'relation') ?? {})
    const { name, facts } = mention
    if (facts.opaqueWrites) this.#add(everything(facts.opaqueWrites))
    if (facts.referenced)
      this.#add(everything(`${facts.referenced.by} refers to ${name}, of which rows are deleted`))
    const isAlone = this.#readOthers(remove.usingClause, remove.whereClause, ctes)
    const place = this.#rows(mention, remove.whereClause, isAlone)
    for (const unique of facts.uniques.filter(({ isPrimary }) => !isPrimary))
      this.#add({ locks: [{ place: placeOf(name, unique), strength: UPDATE, seeks: false }] })
    this.#add({ changes: [place] })
    const scan = { isAlone, isOrdered: false }
    this.#readLock({ place, strength: UPDATE, seeks: true }, mention, remove.whereClause, scan)
  }

  /** Of UPDATE … FROM and DELETE … USING. @returns there are none */
  #readOthers(from: unknown, where: unknown, ctes: ReadonlySet<string>): boolean {
    const places = this.#mentions(from, ctes).map((one) => this.#rows(one, where, false))
    this.#add({ reads: places })
    // If several match, it takes the first to come.
    const isOne = places.length === countTables(from) && places.every(({ keys }) => keys?.size === 1)
    if (list(from).length > 0 && !isOne) this.#gathers = true
    return list(from).length === 0
  }

  /** What a SET list does to keys. @returns the strength of the row's lock */
  #readChange(place: Place, facts: TableFacts, targets: unknown): number {
    const { table } = place
    const set = list(targets).map((target) => inside(target, 'ResTarget') ?? {})
    const columns = set.map(({ name }) => `${name}`)
    if (set.some(({ val }) => inside(val, 'SetToDefault')))
      this.#add(everything('it sets a column to its default'))
    const timed = set.filter(({ val }) => asksForTime(val)).map(({ name }) => name)
    if (facts.columns.some(({ name, isTime }) => timed.includes(name) && !isTime))
      this.#add({ timed: new Set([table]) })
    const isTouched = ({ columns: own }: UniqueIndex): boolean =>
      !own || own.some((one) => columns.includes(one))
    for (const unique of facts.uniques) {
      // Whoever inserts the key of a row that is being changed waits, also where the key stays.
      if (isTouched(unique) || !unique.isPrimary)
        this.#add({
          locks: [
            { place: placeOf(table, unique), strength: isTouched(unique) ? UPDATE : KEY_SHARE, seeks: false },
          ],
        })
      if (isTouched(unique) && unique.isPrimary) this.#add({ adds: [placeOf(table, unique)] })
    }
    if (facts.referenced?.columns.some((one) => columns.includes(one)))
      this.#add(everything(`${facts.referenced.by} refers to ${table}, whose key is changed`))
    const isComputed = (name: string): boolean =>
      facts.columns.some((column) => column.name === name && column.isGenerated)
    const moved = facts.foreignKeys.filter((key) =>
      key.columns.some((one) => columns.includes(one) || isComputed(one)),
    )
    this.#readForeignKeys({ ...facts, foreignKeys: moved }, () => undefined)
    const touched = facts.uniques.filter(isTouched)
    const hasMoved = touched.some(({ isPrimary }) => isPrimary)
    this.#add({ changes: [hasMoved ? { table, index: ROWS } : place], puts: new Set([table]) })
    return touched.length > 0 ? UPDATE : NO_KEY_UPDATE
  }

  /** Rows of a table that a condition can be true for. */
  #rows(one: Mention, where: unknown, isAlone: boolean): Place {
    const columns = primaryOf(one.facts)?.columns ?? null
    const keys = this.#keys(one, where, columns, isAlone)
    return { table: one.name, schema: one.facts.schema, index: ROWS, keys }
  }

  #keys(
    { alias, facts, isRenamed }: Mention,
    where: unknown,
    wanted: readonly string[] | null,
    isAlone: boolean,
  ): ReadonlySet<string> | undefined {
    if (isRenamed || !wanted) return undefined
    const columns = wanted.flatMap((name) => facts.columns.find((one) => one.name === name) ?? [])
    const isColumn = (field: unknown, column: string): boolean => {
      const parts = names(inside(field, 'ColumnRef')?.fields)
      if (parts.at(-1) !== column) return false
      return parts.length === 1 ? isAlone : parts.at(-2) === alias
    }
    return keysIn(where, columns, isColumn, this.#values)
  }

  #readCall(call: Node): void {
    const parts = names(call.funcname)
    const bare = parts.at(-1) ?? ''
    const isBuiltIn = this.#lore.isBuiltIn(parts.join('.'))
    const parameters = list(call.args).map((argument) => constantOf(argument, this.#values))
    const lock = isBuiltIn ? advisoryLock(bare, parameters) : undefined
    if (lock) return void this.#add(lock)
    if (bare === 'nextval' && isBuiltIn) {
      const sequence = sequenceOf(list(call.args)[0], this.#values)
      return void this.#add(
        sequence ? { draws: new Set([sequence]) } : everything('nextval of an unknown sequence'),
      )
    }
    if (gathersRows(call) || roundsSums(call, [...this.#read.values()])) this.#gathers = true
    const surprise = this.#lore.surpriseOf(parts.join('.'))
    if (surprise) this.#add(everything(surprise))
  }
}

/** How a statement comes to rows of a table. */
interface Scan {
  /** There is no other table beside it. */
  readonly isAlone: boolean
  /** By a key, or one row at most. */
  readonly isOrdered: boolean
}

const primaryOf = ({ uniques }: TableFacts): UniqueIndex | undefined =>
  uniques.find(({ isPrimary }) => isPrimary)

const placeOf = (
  table: string,
  { name, isPrimary }: UniqueIndex,
  keys?: ReadonlySet<string> | undefined,
): Place => ({ table, index: isPrimary ? ROWS : name, keys })

/** FOR UPDATE OF names aliases; without OF all are locked. */
function locksThis(lockedRels: unknown, alias: string): boolean {
  const rels = list(lockedRels).map((rel) => inside(rel, 'RangeVar')?.relname)
  return rels.length === 0 || rels.includes(alias)
}

/** Whatever a FROM clause takes rows from. */
function countTables(from: unknown): number {
  if (from === undefined) return 0
  if (Array.isArray(from)) return from.reduce((sum, item) => sum + countTables(item), 0)
  const joined = inside(from, 'JoinExpr')
  return joined ? countTables([joined.larg, joined.rarg]) : 1
}

/** One row, whose numbers are drawn before it can come to wait. */
function drawsOnce(kind: string, node: Node): boolean {
  if (kind === 'SelectStmt') return node.fromClause === undefined && node.larg === undefined
  return kind === 'InsertStmt' && new InsertedRows(node, [], undefined).rows?.length === 1
}

/** A sequence by its name, folded as PostgreSQL does. */
function sequenceOf(argument: unknown, values: Values): string | undefined {
  const cast = inside(argument, 'TypeCast')
  const isRegclass = names(inside(cast, 'typeName')?.names).at(-1) === 'regclass'
  const text = constantOf(isRegclass ? cast?.arg : argument, values) ?? ''
  const [, quoted, plain] = /^(?:(?:"[^"]+"|[a-z_][\w$]*)\.)?(?:"([^"]+)"|([a-z_][\w$]*))$/i.exec(text) ?? []
  return quoted ?? plain?.toLowerCase()
}
