import { isSchemaChange, NEEDS_BLOCK, type StatementKind, statementKind } from './statement-kind.js'
import { isRecord, treeNames } from './tree-names.js'

export type { StatementKind } from './statement-kind.js'

export interface Statement {
  /** As the caller wrote it, without the semicolon and the blanks and comments around it. */
  readonly text: string
  readonly kind: StatementKind
  /**
   * Functions it calls directly, anywhere in it, also the procedure of CALL, as written and folded (`lower`,
   * `app.take`; quoted where PostgreSQL would need it); no duplicates.
   */
  readonly functions: readonly string[]
  /** Tables it names in any role, written likewise (`stock`, `app.stock`); no names of CTEs. */
  readonly tables: readonly string[]
  /** It makes, changes or drops what tables are made of, and not only for its own session. */
  readonly changesSchema: boolean
  /** Outside a transaction block it fails or does nothing: LOCK TABLE, a cursor, SET CONSTRAINTS. */
  readonly needsBlock: boolean
  /** The parser understood it. If not, `kind` is `work` and `text` the whole message. */
  readonly isParsed: boolean
  /** As libpg-query gives it. */
  readonly tree?: unknown
}

/** A run of an explorer sends few texts many times. */
const MAX_CACHED_TEXTS = 2_000
const cache = new Map<string, readonly Statement[]>()
let loading: Promise<void> | undefined
let parser: typeof import('libpg-query') | undefined

/** To be awaited once before `parseStatements`; again is free. */
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

/** Takes what one message carries apart; nothing but blanks and comments gives no statement. */
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
    // A newer syntax, an error the server will report, or a tree too deep to walk.
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
    text: withoutTail(bytes),
    kind,
    functions,
    tables,
    changesSchema: isSchemaChange(type, tree),
    needsBlock: NEEDS_BLOCK.has(type),
    isParsed: true,
    tree,
  })
}

/**
 * The parser leaves comments before a statement out, and those after it in. A `--` at the end would swallow what
 * is put behind the text.
 */
function withoutTail(bytes: Buffer): string {
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
