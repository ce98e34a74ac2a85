import { Dibs } from '../dibs.js'
import { ConnectionLostError } from '../errors.js'
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
  const { schema, schemaVersion, problem } = await dibs.health()
  if (schemaVersion === undefined)
    throw new ConnectionLostError(`Cannot read the version of schema "${schema}": ${problem}`)
  say(`Schema "${schema}" is ${applied > 0 ? 'now' : 'up to date'} at version ${schemaVersion}`)
}
