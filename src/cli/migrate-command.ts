import { Command } from 'commander'
import { addDatabaseOptions } from './database-options.js'
import { type MigrateOptions, migrate } from './migrate.js'

export function migrateCommand(): Command {
  return addDatabaseOptions(new Command('migrate'))
    .description('Bring the schema up to this release; any number of processes may do so at once.')
    .option('--check', 'change nothing; fail if the schema does not fit this release')
    .action((options: MigrateOptions) => migrate(options))
}
