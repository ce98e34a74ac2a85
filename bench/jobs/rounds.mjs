// Alternating rounds: within each round every contestant has its turn, and who begins moves on by one. Only ratios of one round count.

import { median, quantile } from '../quantile.mjs'
import { contestants } from './contestants.mjs'

/**
 * The best peer on PostgreSQL is the yardstick; without one, whoever is first.
 * @param names of those who take part; `turn(name)` answers with `perSecond` and, if it has some, with `knobs`
 */
export async function runRounds({ contest, names, rounds, turn }) {
  const found = new Map(names.map((name) => [name, []]))
  for (let round = 0; round < rounds; round++) {
    for (let n = 0; n < names.length; n++) {
      const name = names[(n + round) % names.length]
      found.get(name).push(await turn(name, round))
    }
    process.stderr.write(`${contest}: round ${round + 1} of ${rounds}\n`)
  }
  const rateOf = (name) => median(found.get(name).map(({ perSecond }) => perSecond))
  const peers = names.filter((name) => contestants[name]?.isPeer)
  const yardstick = peers.toSorted((a, b) => rateOf(b) - rateOf(a))[0] ?? names[0]
  return [...found].map(([contestant, turns]) => {
    const ratios = turns.map(({ perSecond }, round) => perSecond / found.get(yardstick)[round].perSecond)
    return {
      contest,
      contestant,
      perSecond: Math.round(rateOf(contestant)),
      ratio: rounded(median(ratios)),
      spread: [Math.min(...ratios), Math.max(...ratios)].map(rounded),
      ...(turns[0].knobs && { knobs: turns[0].knobs }),
    }
  })
}

export const rounded = (value) => Number(value.toFixed(2))
export const p50p99 = (values) => [rounded(quantile(values, 0.5)), rounded(quantile(values, 0.99))]
