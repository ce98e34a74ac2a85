import { createHash } from 'node:crypto'
import { InvalidInputError } from '../../errors.js'

/** A numbered file of `sql/`. */
export interface MigrationSource {
  /** `0001_clock.sql` */
  readonly file: string
  readonly text: string
}

export interface Migration {
  readonly version: number
  readonly name: string
  readonly file: string
  readonly text: string
  /** The checksum of the source, before the name of the schema is put in: the same in every schema. */
  readonly checksum: string
  /** The oldest release, named by its newest migration, that still works after this one. */
  readonly compatibleFrom: number
  /** False for a statement that refuses a transaction, such as CREATE INDEX CONCURRENTLY. */
  readonly transactional: boolean
  /** The index that a migration outside of a transaction builds. */
  readonly index: string | undefined
}

/** Reads and checks the files of `sql/`, so that mistakes are found here and not in the database of a user. */
export function readMigrations(sources: readonly MigrationSource[]): readonly Migration[] {
  return Object.freeze(sources.map((source, index) => readMigration(source, index + 1)))
}

function readMigration({ file, text }: MigrationSource, expected: number): Migration {
  const refuse = (problem: string) => new InvalidInputError(`sql/${file}`, problem)
  const [, digits, name] = file.match(/^(\d{4})_([a-z0-9_]+)\.sql$/) ?? []
  if (!digits || !name) throw refuse('must be named like 0001_clock.sql')
  const version = Number(digits)
  if (version !== expected) throw refuse(`has number ${version}, but ${expected} comes next`)

  const { compatibleFrom, transactional } = readHeader(text, version, refuse)
  const statements = text.replace(/--.*$/gm, '').trim()
  const index = transactional ? checkTransactional(statements, refuse) : checkSingle(statements, refuse)
  const checksum = createHash('sha256').update(text).digest('hex')
  return Object.freeze({ version, name, file, text, checksum, compatibleFrom, transactional, index })
}

type Refuse = (problem: string) => Error

function readHeader(text: string, version: number, refuse: Refuse) {
  const header = text.match(/^(?:--.*\n)+/)?.[0] ?? ''
  for (const [line] of text.matchAll(/^--\s*(?:compatible|transaction)\w*\s*:.*$/gim)) {
    const isKnown = /^-- (compatible_from: \d+|transaction: none)$/.test(line) && header.includes(line)
    if (!isKnown) throw refuse(`has the line "${line}", which is not understood there`)
  }
  const compatibleFrom = Number(header.match(/^-- compatible_from: (\d+)$/m)?.[1])
  if (!(compatibleFrom >= 1 && compatibleFrom <= version)) {
    throw refuse(`must say "-- compatible_from: N" in its header, with N from 1 to ${version}`)
  }
  return { compatibleFrom, transactional: !/^-- transaction: none$/m.test(header) }
}

function checkTransactional(statements: string, refuse: Refuse): undefined {
  if (/\bconcurrently\b/i.test(statements))
    throw refuse('must say "-- transaction: none" to use CONCURRENTLY')
  if (/^\s*(?:begin|commit|rollback|abort|start\s+transaction)\b[^;\n]*;/im.test(statements)) {
    throw refuse('must not begin or end a transaction: it runs in one that holds the lock')
  }
}

/**
 * Checks a migration outside of a transaction. A second statement could fail after the first was committed. The file may run
 * twice, if its process dies between the statement and its record.
 */
function checkSingle(statements: string, refuse: Refuse): string | undefined {
  if (statements.replace(/;$/, '').includes(';')) {
    throw refuse('says "transaction: none" and so must be one statement')
  }
  if (
    /\bdrop\s+index\b/i.test(statements) &&
    !/\bdrop\s+index\s+concurrently\s+if\s+exists\b/i.test(statements)
  ) {
    throw refuse('must say DROP INDEX CONCURRENTLY IF EXISTS, since it may run twice')
  }
  if (!/\bcreate\s+(?:unique\s+)?index\b/i.test(statements)) return undefined
  const index = statements.match(
    /\bindex\s+concurrently\s+if\s+not\s+exists\s+([a-z_][a-z0-9_]*)\s+on\b/,
  )?.[1]
  if (!index) throw refuse('must say CREATE INDEX CONCURRENTLY IF NOT EXISTS name, since it may run twice')
  if (index.length > 63) throw refuse(`names an index that PostgreSQL would cut to 63 characters: ${index}`)
  return index
}
