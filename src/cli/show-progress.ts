import { type DibsEvents, onEvent } from '../postgres/events.js'
import { say } from './say.js'

type Step = DibsEvents['dibs:embedded.starting']['step']

const steps: Readonly<Record<Step, (folder: string) => string>> = {
  copying: () => 'Copying the programs of PostgreSQL (once) …',
  initializing: (folder) => `Initializing a PostgreSQL in ${folder} (once) …`,
  starting: (folder) => `Starting the PostgreSQL in ${folder} …`,
  waiting: (folder) => `Waiting for the PostgreSQL in ${folder} …`,
}

/** Says from now on what takes a while when a database is opened, and what was changed in it. */
export function showProgress(): void {
  const waitedFor = new Set<string>()
  onEvent('dibs:embedded.starting', ({ step, folder }) => say(steps[step](folder)))
  onEvent('dibs:embedded.lost', ({ error, retryInMs }) => {
    const why = error instanceof Error ? error.message : String(error)
    console.error(`${why} Trying again in ${Math.ceil(retryInMs / 1000)} s.`)
  })
  onEvent('dibs:migration.applied', ({ version, migration, elapsedMs }) =>
    say(`Applied migration ${version} (${migration}) in ${Math.round(elapsedMs)} ms`),
  )
  onEvent('dibs:migration.waiting', ({ subject }) => {
    // It is told at each look, many times a second.
    if (!waitedFor.has(subject)) say(`Waiting for ${subject} …`)
    waitedFor.add(subject)
  })
}
