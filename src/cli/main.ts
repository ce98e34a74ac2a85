#!/usr/bin/env node
import { createRequire } from 'node:module'
import { inspect } from 'node:util'
import { Command } from 'commander'
import { DibsError } from '../errors.js'
import { migrateCommand } from './migrate.js'
import { serveCommand } from './serve.js'

const EXIT_MS = 1_000

// If the reader of the output closes it, this process must not end halfway.
for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})

const { version }: { version: string } = createRequire(import.meta.url)('dibs/package.json')

try {
  await new Command('dibs')
    .description('Claim first. Concurrency-safe building blocks on PostgreSQL.')
    .version(version)
    .addCommand(serveCommand())
    .addCommand(migrateCommand())
    .parseAsync()
} catch (error) {
  // For a Dibs error, the message is enough, with the option named as on the command line. Other errors need their stack.
  const isOurs = error instanceof DibsError
  console.error(isOurs ? `error: ${error.message.replaceAll('`embedded.dir`', '`--dir`')}` : inspect(error))
  process.exitCode = 1
}
// All work is done here. On a silent network, closing sockets would still keep the process alive.
setTimeout(() => process.exit(), EXIT_MS).unref()
