import { rmSync } from 'node:fs'
import { join } from 'node:path'

for (const folder of ['build', 'dist'])
  rmSync(join(import.meta.dirname, '..', folder), { recursive: true, force: true })
