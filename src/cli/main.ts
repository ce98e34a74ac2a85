#!/usr/bin/env node
import { createRequire } from 'node:module'
import { Command } from 'commander'
import { describeError } from './describe-error.js'
import { migrateCommand } from './migrate-command.js'
import { serveCommand } from './serve-command.js'

const EXIT_MS = 1_000

// Whoever read our output may go away before us, which is no reason to end halfway.
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
  console.error(describeError(error))
  process.exitCode = 1
}
// All is closed. A network that has gone silent would still keep the process, for as long as its sockets say goodbye.
setTimeout(() => process.exit(), EXIT_MS).unref()
