import type { Race } from './race.js'

/** Races of one subject, by the names of their files. */
export interface Topic {
  readonly title: string
  /** Markdown. */
  readonly intro?: string
  readonly races: readonly string[]
}

/** In the order of the page. */
export const topics: readonly Topic[] = [
  {
    title: 'Queues and workers',
    races: [
      'skip-locked-autocommit', //
      'monitor-fails-live-worker',
      'lock-is-not-once',
    ],
  },
  {
    title: 'Stock, totals and money',
    races: [
      'last-item', //
      'aggregate-in-two-statements',
      'increment',
      'last-write-wins',
      'opposite-transfers',
    ],
  },
  {
    title: 'Idempotency keys and claims',
    races: [
      'check-then-insert',
      'unique-violation-in-transaction',
      'expired-key',
      'loser-reads-first',
      'claim-released-on-conflict',
      'released-twice',
    ],
  },
  {
    title: 'Locks that live in a table',
    races: [
      'stale-lock-deleted', //
      'lock-gone',
      'release-in-finally',
      'no-fence',
      'leaked-lock',
    ],
  },
]

export async function loadRace(id: string): Promise<Race> {
  const { race } = (await import(`./${id}.ts`)) as { race: Race }
  return race
}
