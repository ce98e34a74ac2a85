import { describe, expect, it } from 'vitest'
import { fixtureSources } from '../../../test/fixtures.js'
import { SchemaVersionError } from '../../errors.js'
import { type AppliedMigration, checkApplied } from './check-applied.js'
import { readMigrations } from './read-migrations.js'

const all = readMigrations(fixtureSources)
const check = (applied: readonly AppliedMigration[], known = all) => checkApplied('dibs', applied, known)

const failure = (run: () => unknown): SchemaVersionError => {
  try {
    run()
  } catch (error) {
    if (error instanceof SchemaVersionError) return error
    throw error
  }
  throw new Error('was accepted')
}

describe('checkApplied', () => {
  it('lists what is to be applied', () => {
    expect(check([])).toEqual(all)
    expect(check(all.slice(0, 3)).map(({ version }) => version)).toEqual([4])
    expect(check(all)).toEqual([])
  })

  it('refuses a changed file', () => {
    const changed = all.map((migration) =>
      migration.version === 2 ? { ...migration, checksum: 'f'.repeat(64) } : migration,
    )
    const error = failure(() => check(changed))
    expect(error.message).toContain('migration 2 (item_owner_index) was applied with other content')
    expect(error.message).toContain('restore sql/0002_item_owner_index.sql')
    expect(error).toMatchObject({ schema: 'dibs', found: 4, expected: 4, code: 'DIBS_SCHEMA_VERSION' })
  })

  it('refuses a gap', () => {
    const error = failure(() => check([all[0], all[2]].flatMap((one) => one ?? [])))
    expect(error.message).toContain('migration 2 is missing although 3 (item_price) is recorded')
  })

  it('accepts a newer database whose migrations say that this release still works', () => {
    expect(check(all, all.slice(0, 3))).toEqual([]) // 4 says compatible_from: 3
    expect(check(all.slice(0, 3), all.slice(0, 2))).toEqual([])
    expect(check(all.slice(0, 2), all.slice(0, 1))).toEqual([])
  })

  it('refuses a newer database that needs a newer release', () => {
    const error = failure(() => check(all, all.slice(0, 2)))
    expect(error.message).toContain(
      'migration 4 (item_price_index) needs a release with at least migration 3',
    )
    expect(error.message).toContain('Upgrade the dibs package')
    expect(error).toMatchObject({ found: 4, expected: 2 })
  })
})
