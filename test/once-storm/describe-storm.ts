import { type Count, faults } from './hits.js'
import type { StormReport } from './storm-report.js'

const columns: readonly [string, keyof Count][] = [
  ['fault', 'fault'],
  ['strikes', 'strikes'],
  ['leased hit', 'leased'],
  ['taken over', 'takenOver'],
  ['late writes refused', 'refused'],
  ['finished all the same', 'finished'],
  ['joined hit', 'joined'],
  ['begun again', 'begunAgain'],
]

/** Formats the report of a storm. */
export function describeStorm(report: StormReport): string {
  const rows = [
    columns.map(([title]) => title),
    ...report.counts.map((count) => columns.map(([, name]) => `${count[name]}`)),
  ]
  const widths = columns.map((_, at) => Math.max(...rows.map((row) => row[at]?.length ?? 0)))
  const table = rows.map((row) => row.map((cell, at) => cell.padStart(widths[at] ?? 0)).join('  '))
  const { seed, answered, elapsedMs, arrivals, repeated, unexplained, answersLost } = report
  const { maintained, threw, notGivenBack, again } = report
  return [
    `seed ${seed}: ${answered} answered calls in ${(elapsedMs / 1_000).toFixed(1)} s`,
    ...table,
    `answers lost with a backend: ${answersLost}; taken over without a fault of ours: ${unexplained}`,
    `arrivals outside: ${arrivals}, of which ${repeated} were repetitions; left to maintenance: ${maintained}`,
    `attempts that threw: ${threw}, of which ${notGivenBack} were not given back`,
    `told to come again: ${JSON.stringify(again)}`,
  ].join('\n')
}

/** The minimum effects of each kind of fault. With less, the storm has tested nothing. */
const wanted: Readonly<Record<Count['fault'], readonly (keyof Count)[]>> = {
  SIGKILL: ['leased', 'takenOver'],
  SIGSTOP: ['leased', 'takenOver', 'refused'],
  // The holder lives: it must do without its connections, and needs nobody to take over.
  terminate: ['leased', 'finished'],
}

/** Finds what all storms together lack. How often a fault strikes live work depends on the load of the machine. */
export function findShortfalls(reports: readonly StormReport[], minimum: number): string[] {
  const total = (figure: (report: StormReport) => number): number =>
    reports.reduce((sum, report) => sum + figure(report), 0)
  const totalOf = (fault: Count['fault'], name: keyof Count): number =>
    total(({ counts }) => Number(counts.find((count) => count.fault === fault)?.[name]))
  const figures: [string, number, number][] = faults.flatMap((fault) =>
    wanted[fault].map((name): [string, number, number] => {
      const title = columns.find(([, column]) => column === name)?.[0]
      return [`${fault}: ${title}`, totalOf(fault, name), minimum]
    }),
  )
  const begunAgain = faults.reduce((sum, fault) => sum + totalOf(fault, 'begunAgain'), 0)
  const threw = total((report) => report.threw)
  figures.push(
    ['transactions that were rolled back by a fault and begun again', begunAgain, minimum],
    ['answers lost with a backend', total(({ answersLost }) => answersLost), minimum],
    ['left to maintenance', total(({ maintained }) => maintained), 1],
    // Now and then a word is lost with its backend, and the lease runs out in its place.
    ['attempts that threw and were given back', threw - total(({ notGivenBack }) => notGivenBack), threw / 2],
  )
  return figures
    .filter(([, found, least]) => !(found >= least))
    .map(([name, found, least]) => `${name}: ${found}, fewer than ${least}, so that this was not tested`)
}
