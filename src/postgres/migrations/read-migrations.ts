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
  /** Of the source, before the schema's name is put in: the same in every schema. */
  readonly checksum: string
  /** The oldest release, named by its newest migration, that still works after this one. */
  readonly compatibleFrom: number
  /** False for what refuses a transaction block, such as CREATE INDEX CONCURRENTLY. */
  readonly transactional: boolean
}

/** Reads and checks the files of `sql/`; whatever is wrong with them is found here and not in a user's database. */
export function readMigrations(sources: readonly MigrationSource[]): readonly Migration[] {
  return Object.freeze(sources.map((source, index) => readMigration(source, index + 1)))
}

function readMigration({ file, text }: MigrationSource, expected: number): Migration {
  const refuse = (problem: string) => new InvalidInputError(`sql/${file}`, problem)
  const [, digits, name] = file.match(/^(\d{4})_([a-z0-9_]+)\.sql$/) ?? []
  if (!digits || !name) throw refuse('must be named like 0001_clock.sql')
  const version = Number(digits)
  if (version !== expected) throw refuse(`has number ${version}, but ${expected} comes next`)

  const header = text.match(/^(?:--.*\n)+/)?.[0] ?? ''
  const compatibleFrom = Number(header.match(/^-- compatible_from: (\d+)$/m)?.[1])
  if (!(compatibleFrom >= 1 && compatibleFrom <= version)) {
    throw refuse(`must say "-- compatible_from: N" in its header, with N from 1 to ${version}`)
  }
  const transactional = !/^-- transaction: none$/m.test(header)
  if (!transactional) checkSingle(text, refuse)
  const checksum = createHash('sha256').update(text).digest('hex')
  return Object.freeze({ version, name, file, text, checksum, compatibleFrom, transactional })
}

/**
 * Outside a transaction a second statement could fail after the first was kept. And the file may run twice, when
 * its process dies between the statement and its record.
 */
function checkSingle(text: string, refuse: (problem: string) => Error): void {
  const statements = text.replace(/^\s*--.*$/gm, '').trim()
  if (statements.replace(/;$/, '').includes(';')) {
    throw refuse('says "transaction: none" and so must be one statement')
  }
  if (/\bcreate\s+(unique\s+)?index\b/i.test(statements) && !/\bif\s+not\s+exists\b/i.test(statements)) {
    throw refuse('must say CREATE INDEX CONCURRENTLY IF NOT EXISTS, since it may run twice')
  }
}
