import { type DibsEvents, onEvent } from '../postgres/events.js'
import { printLine } from './print-line.js'

type Step = DibsEvents['dibs:embedded.starting']['step']

const steps: Readonly<Record<Step, (folder: string) => string>> = {
  copying: () => 'Copying the programs of PostgreSQL (once) …',
  initializing: (folder) => `Initializing a PostgreSQL in ${folder} (once) …`,
  starting: (folder) => `Starting the PostgreSQL in ${folder} …`,
  waiting: (folder) => `Waiting for the PostgreSQL in ${folder} …`,
}

/** Prints the steps of opening a database that take a while, and the migrations that are applied. */
export function showProgress(): void {
  const waitedFor = new Set<string>()
  onEvent('dibs:embedded.starting', ({ step, folder }) => printLine(steps[step](folder)))
  onEvent('dibs:embedded.lost', ({ error, retryInMs }) => {
    const why = error instanceof Error ? error.message : String(error)
    console.error(`${why} Trying again in ${Math.ceil(retryInMs / 1000)} s.`)
  })
  onEvent('dibs:migration.applied', ({ version, migration, elapsedMs }) =>
    printLine(`Applied migration ${version} (${migration}) in ${Math.round(elapsedMs)} ms`),
  )
  onEvent('dibs:migration.waiting', ({ subject }) => {
    // The event comes with each try, many times a second.
    if (!waitedFor.has(subject)) printLine(`Waiting for ${subject} …`)
    waitedFor.add(subject)
  })
}
