// Packs sql/*.sql into src/postgres/migrations/generated/migrations.ts, so that the built package needs no files beside it.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { writeIfChanged } from './write-if-changed.mjs'

const root = join(import.meta.dirname, '..')
const target = join(root, 'src/postgres/migrations/generated/migrations.ts')

const sources = readdirSync(join(root, 'sql'))
  .filter((name) => name.endsWith('.sql'))
  .sort()
  .map((file) => ({ file, text: readFileSync(join(root, 'sql', file), 'utf8').replaceAll('\r\n', '\n') }))

const body = `// Generated from sql/ by scripts/generate-migrations.mjs. Do not edit.
import { readMigrations } from '../read-migrations.js'

export const migrations = readMigrations(${JSON.stringify(sources, null, 2)})
`

writeIfChanged(target, body)
