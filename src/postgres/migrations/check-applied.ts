import { SchemaVersionError } from '../../errors.js'
import type { Migration } from './read-migrations.js'

/** A row of the table `migration`. */
export interface AppliedMigration {
  readonly version: number
  readonly name: string
  readonly checksum: string
  readonly compatibleFrom: number
}

/**
 * Compares the applied migrations with those of this release, and returns the missing ones. A newer database is accepted if each
 * newer migration says that this release is compatible, so that pods can roll.
 */
export function checkApplied(
  schema: string,
  applied: readonly AppliedMigration[],
  known: readonly Migration[],
): readonly Migration[] {
  const found = applied.at(-1)?.version ?? 0
  const expected = known.length
  const refuse = (problem: string): SchemaVersionError =>
    new SchemaVersionError(`Schema "${schema}": ${problem}`, schema, found, expected)

  applied.forEach(({ version, name, checksum, compatibleFrom }, index) => {
    if (version !== index + 1) {
      throw refuse(
        `migration ${index + 1} is missing although ${version} (${name}) is recorded. Rows of "${schema}".migration were deleted; restore them from a backup.`,
      )
    }
    const file = known[index]
    if (file && file.checksum !== checksum) {
      throw refuse(
        `migration ${version} (${name}) was applied with other content than this release has (recorded ${checksum.slice(0, 12)}, here ${file.checksum.slice(0, 12)}). Install the release that applied it; if you build Dibs yourself, restore sql/${file.file}: a change belongs in a new migration.`,
      )
    }
    // guard: migration.compatible
    if (!file && compatibleFrom > expected) {
      throw refuse(
        `the database is at version ${found}, and migration ${version} (${name}) needs a release with at least migration ${compatibleFrom}; this one ends at ${expected}. Upgrade the dibs package.`,
      )
    }
  })
  return known.slice(applied.length)
}
