// Cost of a claim beside a million other jobs: waiting for the same workers, waiting for others, or not yet due.
import { median } from '../quantile.mjs'
import { contestants } from './contestants.mjs'
import { JobProcess } from './process.mjs'
import { rounded } from './rounds.mjs'
import { analyze } from './server.mjs'
import { settings } from './settings.mjs'

const CONCURRENCY = 1_000

const kinds = { waiting: 'waiting in the same lane', other: 'waiting in other lanes', later: 'not yet due' }

const cases = [
  { crowd: 0 },
  ...Object.keys(kinds).flatMap((kind) =>
    [settings.crowd / 10, settings.crowd].map((crowd) => ({ kind, crowd })),
  ),
]

export async function measureCrowds(place, names) {
  const results = []
  for (const contestant of names) {
    const process = await JobProcess.open(contestant, place)
    try {
      const rates = cases.map(() => [])
      for (let round = 0; round < settings.rounds; round++) {
        for (const [n, wanted] of cases.entries())
          rates[n].push(await drainBeside(place, process, contestant, wanted))
        globalThis.process.stderr.write(`${contestant}: crowds, round ${round + 1} of ${settings.rounds}\n`)
      }
      for (const [n, { kind, crowd }] of cases.entries()) {
        const ratios = rates[n].map((rate, round) => rate / rates[0][round])
        results.push({
          contestant,
          beside: crowd === 0 ? 'nothing else' : `${crowd} ${kinds[kind]}`,
          perSecond: Math.round(median(rates[n])),
          ratio: rounded(median(ratios)),
          spread: [rounded(Math.min(...ratios)), rounded(Math.max(...ratios))],
        })
      }
      await process.call('clear')
    } finally {
      await process.close()
    }
  }
  return results
}

async function drainBeside(place, process, name, { kind, crowd }) {
  await process.call('clear')
  if (crowd > 0) await process.call('fill', { kind, count: crowd })
  // Some more than are run: the last ones are claimed in small batches, which a backlog spares.
  await process.call('addAll', { count: Math.round(settings.crowdJobs * 1.25), batch: settings.batch })
  // A vacuum that comes by while it runs is not what is compared.
  await analyze(place.url, contestants[name].schema, 'vacuum analyze')
  const before = await process.call('outcomes')
  const { perSecond } = await process.call('drainSome', {
    count: settings.crowdJobs,
    concurrency: CONCURRENCY,
  })
  const after = await process.call('outcomes')
  const gone = before.left - after.left
  // Jobs that were claimed before the stop run too, so `gone` may be more than `crowdJobs`.
  if (gone < settings.crowdJobs || after.ended !== gone)
    throw new Error(`${name}: ${gone} gone, ${after.ended} outcomes`)
  return perSecond
}

export const crowdTable = (rows) =>
  [
    `| claim, run, complete: concurrency ${CONCURRENCY}, ${settings.crowdJobs} jobs | beside | /s | of that on an empty table | spread |`,
    '|---|---|---|---|---|',
    ...rows.map(
      (row) =>
        `| ${row.contestant} | ${row.beside} | ${row.perSecond} | ${row.ratio} | ${row.spread.join('–')} |`,
    ),
  ].join('\n')
