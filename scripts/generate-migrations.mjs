// Packs sql/*.sql into src/postgres/migrations/generated/migrations.ts, so that the built package needs no files beside it.
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { withoutMarkers } from './mutate/markers.mjs'
import { writeIfChanged } from './write-if-changed.mjs'

const root = join(import.meta.dirname, '..')
const target = join(root, 'src/postgres/migrations/generated/migrations.ts')

const sources = readdirSync(join(root, 'sql'))
  .filter((name) => name.endsWith('.sql'))
  .sort()
  .map((file) => ({ file, text: readFileSync(join(root, 'sql', file), 'utf8').replaceAll('\r\n', '\n') }))
  // Markers of guards (`-- guard: …`) are for `npm run mutate`, not for the database.
  .map(({ file, text }) => ({ file, text: withoutMarkers(text) }))

const body = `// Generated from sql/ by scripts/generate-migrations.mjs. Do not edit.
import { readMigrations } from '../read-migrations.js'

export const migrations = readMigrations(${JSON.stringify(sources, null, 2)})
`

writeIfChanged(target, body)
