import { afterAll } from 'vitest'
import { acceptRaces } from './accept-races.js'

/** A hundred times in a row: `races.soak.ts`. */
const explored = await acceptRaces(3)
afterAll(() => {
  for (const { id, reports } of explored.values())
    for (const r of reports) console.log(`## ${id} ${r.schedules} ${r.seconds}\n${r.race?.printout ?? r.summary}\n${r.notes.join('\n')}`)
})
