/** The facts about the database that footprints and reports need. */
export interface SchemaInfo {
  table(name: string): TableInfo
  /** Why a call of the function may do or see anything; undefined if it does not. */
  whyUnpredictable(functionName: string): string | undefined
  /** True if no function of the user has that name. */
  isBuiltIn(functionName: string): boolean
  /** True if the user has created an operator of that name. */
  isUserOperator(name: string): boolean
  /** True if a cast to a type of that name may call a function of the user, or check a domain. */
  isUserCast(typeName: string): boolean
  /** A known function that may change the isolation level or the search path of its session. */
  readonly settingsChanger: string | undefined
}

/** Facts about a table from the catalog, which the text of a statement does not show. */
export interface TableInfo {
  /** Undefined if tables of several schemas have this name. */
  readonly schema?: string | undefined
  /** Why a statement on the table has an unbounded footprint. */
  readonly unpredictable?: string | undefined
  /** Why a statement that writes to the table has an unbounded footprint. */
  readonly unpredictableWrites?: string | undefined
  readonly columns: readonly Column[]
  readonly uniques: readonly UniqueIndex[]
  readonly foreignKeys: readonly ForeignKey[]
  /** Columns that foreign keys of other tables refer to, and one of those tables. */
  readonly referenced: { readonly columns: readonly string[]; readonly by: string } | null
}

export interface Column {
  readonly name: string
  readonly type: string
  readonly isNotNull: boolean
  /** True if the column holds a time or a transaction id, which shows what came first. */
  readonly isTemporal: boolean
  /** True if two values are equal exactly if their texts are equal. */
  readonly hasTextEquality: boolean
  /** The length beyond which texts are cut or refused. */
  readonly maxLength: number | null
  /** True if the column is computed from other columns. */
  readonly isGenerated: boolean
  /** Sequences from which its default draws. */
  readonly sequences: readonly string[]
  /** The value of an INSERT that leaves the column out: NULL, a value that no other row has, or some value. */
  readonly default: 'null' | 'fresh' | 'some'
}

export interface UniqueIndex {
  readonly name: string
  readonly isPrimary: boolean
  /** Null if the index has expressions or is partial. */
  readonly columns: readonly string[] | null
}

export interface ForeignKey {
  readonly columns: readonly string[]
  readonly table: string
  readonly schema: string
  /** True if the key refers to the primary key, with the columns in the same order. */
  readonly isToPrimary: boolean
}

/** The columns of the primary key; undefined if there is none. */
export const primaryColumnsOf = ({ uniques }: TableInfo): readonly string[] | undefined =>
  uniques.find(({ isPrimary }) => isPrimary)?.columns ?? undefined
