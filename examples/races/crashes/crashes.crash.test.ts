import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { acceptCrashes } from './accept-crashes.js'
import { crashesPage } from './page.js'

/** Twenty times in a row: `crashes.soak.ts`. */
const tried = await acceptCrashes(1)

it('docs/crashes.md is what they print', async () => {
  const page = crashesPage(tried, (file) => readFileSync(join(import.meta.dirname, '..', file), 'utf8'))
  await expect(`${page}\n`, 'run: npm run docs').toMatchFileSnapshot('../../../docs/crashes.md')
})
