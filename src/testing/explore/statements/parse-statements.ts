import { isRecord } from './parse-tree.js'
import { isSchemaChange, NEEDS_BLOCK, type StatementKind, statementKind } from './statement-kind.js'
import { treeNames } from './tree-names.js'

export interface Statement {
  /** The text as the caller wrote it, without the semicolon, blanks and comments around it. */
  readonly text: string
  readonly kind: StatementKind
  /**
   * Functions that the statement itself calls, at any depth, and the procedure of CALL. Names are in lower case unless quoted,
   * and quoted where PostgreSQL needs it: `lower`, `app.take`. No duplicates.
   */
  readonly functions: readonly string[]
  /** Tables that the statement names in any role, written like `functions`: `stock`, `app.stock`. No names of CTEs. */
  readonly tables: readonly string[]
  /** True if the statement creates, changes or drops objects of the schema that are not temporary. */
  readonly changesSchema: boolean
  /** True if the statement fails or does nothing outside a transaction block: LOCK TABLE, a cursor, SET CONSTRAINTS. */
  readonly needsBlock: boolean
  /** False if the parser did not understand the message. Then `kind` is `work`, and `text` is the whole message. */
  readonly isParsed: boolean
  /** The parse tree of libpg-query. */
  readonly tree?: unknown
}

/** An exploration sends few texts many times. */
const MAX_CACHED_TEXTS = 2_000
const cache = new Map<string, readonly Statement[]>()
let loading: Promise<void> | undefined
let parser: typeof import('libpg-query') | undefined

/** Must be awaited before the first `parseStatements`. Later calls cost nothing. */
export function loadParser(): Promise<void> {
  loading ??= load()
  return loading
}

async function load(): Promise<void> {
  const loaded = await import('libpg-query')
  await loaded.loadModule()
  parser = loaded
}

function loadedParser(): typeof import('libpg-query') {
  if (!parser) throw new Error('await loadParser() before a statement is parsed')
  return parser
}

/** Splits the text of one message into its statements. Blanks and comments alone give none. */
export function parseStatements(text: string): readonly Statement[] {
  const known = cache.get(text)
  if (known) return known
  const statements = Object.freeze(parse(text))
  const [oldest] = cache.size < MAX_CACHED_TEXTS ? [] : cache.keys()
  if (oldest !== undefined) cache.delete(oldest)
  cache.set(text, statements)
  return statements
}

function parse(text: string): Statement[] {
  const { parseSync } = loadedParser()
  if (text.trim() === '') return []
  try {
    // The parser counts in bytes of UTF-8.
    const bytes = Buffer.from(text)
    return (parseSync(text).stmts ?? []).map(({ stmt, stmt_location: start = 0, stmt_len: length }) =>
      describe(stmt, bytes.subarray(start, length ? start + length : undefined)),
    )
  } catch {
    // The text has a newer syntax, an error that the server will report, or a tree too deep to walk.
    return [
      freeze({
        text: text.trim(),
        kind: 'work',
        functions: [],
        tables: [],
        changesSchema: false,
        needsBlock: false,
        isParsed: false,
      }),
    ]
  }
}

function describe(tree: unknown, bytes: Buffer): Statement {
  const [type, node] = (isRecord(tree) && Object.entries(tree)[0]) || ['', undefined]
  const names = treeNames(tree)
  const { functions, tables } = names
  const kind = statementKind(type, isRecord(node) ? node : {}, names)
  return freeze({
    text: withoutTrailingComments(bytes),
    kind,
    functions,
    tables,
    changesSchema: isSchemaChange(type, tree),
    needsBlock: NEEDS_BLOCK.has(type),
    isParsed: true,
    tree,
  })
}

/** Removes comments at the end, which the parser leaves in. A `--` at the end would comment out what is appended later. */
function withoutTrailingComments(bytes: Buffer): string {
  const text = bytes.toString().trim()
  if (!text.includes('--') && !text.includes('/*')) return text
  const last = loadedParser()
    .scanSync(text)
    .tokens.findLast(({ tokenName }) => !tokenName.endsWith('_COMMENT'))
  return Buffer.from(text).subarray(0, last?.end).toString()
}

function freeze(statement: Statement): Statement {
  Object.freeze(statement.functions)
  Object.freeze(statement.tables)
  return Object.freeze(statement)
}
