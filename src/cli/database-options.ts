import { type Command, Option } from 'commander'
import type { OpenOptions } from '../postgres/open-options.js'

/** The options of all commands that say which database to use. */
export interface DatabaseOptions {
  readonly url?: string
  readonly dir?: string
  readonly schema?: string
}

export function addDatabaseOptions(command: Command): Command {
  return command
    .option('--url <url>', 'where PostgreSQL is (default: the variable DATABASE_URL)')
    .addOption(
      new Option(
        '--dir <folder>',
        'start a PostgreSQL that keeps its data in this folder (default without a URL: ./.dibs)',
      ).conflicts('url'),
    )
    .option('--schema <name>', 'the schema of the tables of Dibs (default: dibs)')
}

export function toOpenOptions({ url, dir, schema }: DatabaseOptions): OpenOptions {
  return { url, schema, embedded: dir === undefined ? undefined : { dir } }
}
