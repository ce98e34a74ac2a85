import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { acceptRaces } from './accept-races.js'
import { racesPage } from './page.js'

/** A hundred times in a row: `races.soak.ts`. */
const explored = await acceptRaces(3)

it('docs/races.md is what they print', async () => {
  const page = racesPage(explored, (file) => readFileSync(join(import.meta.dirname, file), 'utf8'))
  await expect(`${page}\n`, 'run: npm run docs').toMatchFileSnapshot('../../docs/races.md')
})
