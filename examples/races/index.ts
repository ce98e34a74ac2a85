import type { Race } from './race.js'

/** Races of one subject. A race's id is the name of its file. */
export interface Topic {
  readonly title: string
  readonly races: Readonly<Record<string, () => Promise<{ readonly race: Race }>>>
}

/** In the order of the page. */
export const topics: readonly Topic[] = [
  {
    title: 'Queues and workers',
    races: {
      'skip-locked-autocommit': () => import('./skip-locked-autocommit.js'),
      'monitor-fails-live-worker': () => import('./monitor-fails-live-worker.js'),
      'late-owner': () => import('./late-owner.js'),
      'stuck-job': () => import('./stuck-job.js'),
      'blind-verification': () => import('./blind-verification.js'),
      'last-of-batch': () => import('./last-of-batch.js'),
    },
  },
  {
    title: 'Stock, totals and money',
    races: {
      'last-item': () => import('./last-item.js'),
      'last-write-wins': () => import('./last-write-wins.js'),
      'aggregate-in-two-statements': () => import('./aggregate-in-two-statements.js'),
      increment: () => import('./increment.js'),
      'compared-version': () => import('./compared-version.js'),
      'uncounted-credit': () => import('./uncounted-credit.js'),
      'charge-under-version': () => import('./charge-under-version.js'),
      'opposite-transfers': () => import('./opposite-transfers.js'),
    },
  },
  {
    title: 'Idempotency keys and claims',
    races: {
      'look-then-set': () => import('./look-then-set.js'),
      'check-then-insert': () => import('./check-then-insert.js'),
      'unique-violation-in-transaction': () => import('./unique-violation-in-transaction.js'),
      'expired-key': () => import('./expired-key.js'),
      'loser-reads-first': () => import('./loser-reads-first.js'),
      'claim-released-on-conflict': () => import('./claim-released-on-conflict.js'),
      'released-twice': () => import('./released-twice.js'),
      'random-execution-id': () => import('./random-execution-id.js'),
    },
  },
  {
    title: 'Commands and their retries',
    races: {
      'received-twice': () => import('./received-twice.js'),
      'unguarded-finish': () => import('./unguarded-finish.js'),
      'poison-command': () => import('./poison-command.js'),
      'forgotten-domain': () => import('./forgotten-domain.js'),
      'stale-retry': () => import('./stale-retry.js'),
      heartbeat: () => import('./heartbeat.js'),
    },
  },
  {
    title: 'The state of a process',
    races: {
      'two-responses': () => import('./two-responses.js'),
      'shallow-merge': () => import('./shallow-merge.js'),
      'wait-timeout': () => import('./wait-timeout.js'),
      'terminal-guard': () => import('./terminal-guard.js'),
    },
  },
  {
    title: 'Locks that live in a table',
    races: {
      'lock-is-not-once': () => import('./lock-is-not-once.js'),
      'leaked-lock': () => import('./leaked-lock.js'),
      'stale-lock-deleted': () => import('./stale-lock-deleted.js'),
      'release-in-finally': () => import('./release-in-finally.js'),
      'no-fence': () => import('./no-fence.js'),
    },
  },
]
