import { Command } from 'commander'
import { Dibs } from '../dibs.js'
import { ConnectionLostError } from '../errors.js'
import { onEvent } from '../postgres/events.js'
import { addDatabaseOptions, type DatabaseOptions, toOpenOptions } from './database-options.js'
import { printLine } from './print-line.js'
import { showProgress } from './show-progress.js'

export interface MigrateOptions extends DatabaseOptions {
  /** Change nothing. */
  readonly check?: boolean
}

/** Migrates a schema to this release. With `check`, fails if that would be necessary. */
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
  printLine(`Schema "${schema}" is ${applied > 0 ? 'now' : 'up to date'} at version ${schemaVersion}`)
}

export function migrateCommand(): Command {
  return addDatabaseOptions(new Command('migrate'))
    .description('Bring the schema up to this release; any number of processes may do so at once.')
    .option('--check', 'change nothing; fail if the schema does not fit this release')
    .action((options: MigrateOptions) => migrate(options))
}
