import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { acceptRaces } from './accept-races.js'
import { racesPage } from './page.js'

/** A hundred times in a row: `races.soak.ts`. */
const explored = await acceptRaces(1)

/** What the explorer calls each race; `-`: nothing, because the schedule alone does not tell. */
const names: Readonly<Record<string, string>> = {
  'skip-locked-autocommit, wrong': 'duplicate claim',
  'blind-verification, in two reads': 'read skew',
  'last-item, wrong': 'lost update',
  'aggregate-in-two-statements, one-statement': 'write skew',
  'increment, redelivered': 'lost update',
  'last-write-wins, wrong': 'lost update',
  'compared-version, wrong': 'lost update',
  'uncounted-credit, wrong': 'lost update',
  'opposite-transfers, wrong': 'deadlock',
  'look-then-set, wrong': 'lost update',
  'check-then-insert, wrong': 'duplicate claim',
  'unique-violation-in-transaction, wrong': 'duplicate claim',
  'released-twice, wrong': 'dirty lock release',
  'two-responses, wrong': 'lost update',
  'wait-timeout, wrong': 'lost update',
  'wait-timeout, under an advisory lock': 'lost update',
  'random-execution-id, wrong': 'phantom',
  'stale-lock-deleted, wrong': 'dirty lock release',
  'release-in-finally, wrong': 'dirty lock release',
  'no-fence, wrong': 'lost update',
  'no-fence, late': 'lost update',
  // Written without having been read.
  'monitor-fails-live-worker, wrong': '-',
  'received-twice, wrong': '-',
  // What was read is one column, what was written another.
  'late-owner, wrong': '-',
  // Whether the other's row is in the batch stands in the data, not in the schedule.
  'last-of-batch, in a transaction': '-',
  // Each is right by itself; together they are not.
  'last-of-batch, statement by statement': '-',
  // The count was read, and the total written over.
  'aggregate-in-two-statements, wrong': '-',
  // An INSERT that does nothing is no read.
  'expired-key, wrong': '-',
  'claim-released-on-conflict, wrong': '-',
  // It was read too early, not at two times.
  'loser-reads-first, wrong': '-',
  // In a function.
  'terminal-guard, wrong': '-',
  // No update is lost. The harm is outside.
  'charge-under-version, wrong': '-',
  // They wait for each other where the server does not see it.
  'heartbeat, wrong': '-',
}

it('each is called by its name, where it has one', () => {
  const told = explored.flatMap(({ races }) =>
    races.flatMap(({ id, race, reports }) =>
      reports.flatMap((report, n) =>
        report.race && !report.race.isSerial
          ? [[`${id}, ${race.variants[n]?.name}`, report.race.anomaly?.name ?? '-']]
          : [],
      ),
    ),
  )
  expect(Object.fromEntries(told)).toEqual(names)
})

it('docs/races.md is what they print', async () => {
  const page = racesPage(explored, (file) => readFileSync(join(import.meta.dirname, file), 'utf8'))
  await expect(`${page}\n`, 'run: npm run docs').toMatchFileSnapshot('../../docs/races.md')
})
