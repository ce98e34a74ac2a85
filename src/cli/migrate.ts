import { Dibs } from '../dibs.js'
import { onEvent } from '../postgres/events.js'
import { type DatabaseOptions, toOpenOptions } from './database-options.js'
import { say } from './say.js'
import { showProgress } from './show-progress.js'

export interface MigrateOptions extends DatabaseOptions {
  /** Change nothing. */
  readonly check?: boolean
}

/** Brings a schema up to this release, or refuses one that is not. */
export async function migrate({ check = false, ...database }: MigrateOptions): Promise<void> {
  let applied = 0
  onEvent('dibs:migration.applied', () => applied++)
  showProgress()
  await using dibs = await Dibs.open({
    ...toOpenOptions(database),
    migrate: check ? 'check' : 'auto',
    listen: false,
  })
  const { schema, schemaVersion } = await dibs.health()
  say(`Schema "${schema}" is ${applied > 0 ? 'now' : 'up to date'} at version ${schemaVersion ?? 'unknown'}`)
}
