import { type ClaimBlock, type ClaimedJob, readClaimBlock } from '../../src/jobs/claimed-job.js'
import {
  cancelJob,
  claimAtCursors,
  claimOneByOne,
  completeJob,
  completeJobs,
  discardJobs,
  expireJobs,
  pauseQueue,
  promoteJobs,
  recoverJobs,
  redriveJobs,
  renewLeases,
  reportProgress,
  resumeQueue,
  scanJobs,
  settleJob,
  settleJobs,
} from '../../src/jobs/job-statements.js'
import type { Database } from '../../src/postgres/database.js'
import type { Statement } from '../../src/postgres/statement.js'
import { textArray } from '../../src/postgres/text-values.js'
import type { Transaction } from '../../src/postgres/transaction-types.js'

/** A claim: what names it to whatever holds and ends it. */
export interface Held {
  readonly id: number
  readonly fence: number
}

export interface Careful {
  readonly jobs: readonly ClaimedJob[]
  readonly quarantined: readonly number[]
  readonly stuck: readonly number[]
}

export interface Beaten {
  readonly lost: readonly number[]
  readonly locked: readonly number[]
  readonly canceled: Readonly<Record<string, string | null>>
  readonly unknown: readonly string[]
}

export interface Settling extends Held {
  readonly to: 'retry' | 'dead' | 'snooze' | 'release' | 'canceled'
  readonly delayMs?: number
  readonly error?: unknown
}

export interface Recovered extends Held {
  readonly state: string
  readonly worker: string
  readonly attempt: number
}

export type JobCalls = ReturnType<typeof jobCalls>

/** How long a call for one job may wait for the lock of its row. */
const WAIT_MS = '60000'

/** The statements of the engine, as its parts send them. */
export function jobCalls(database: Database, leaseMs: number) {
  const ask = async (statement: Statement, values: readonly (string | null)[], tx?: Transaction) => {
    const [row] = await database.send(statement, values, { tx })
    return Object.values(row ?? {})[0] ?? null
  }
  const read = async <T>(
    statement: Statement,
    values: readonly (string | null)[],
    tx?: Transaction,
  ): Promise<T> => JSON.parse(`${await ask(statement, values, tx)}`)
  const idsOf = (held: readonly Held[]): string => `{${held.map(({ id }) => id)}}`
  const fencesOf = (held: readonly Held[]): string => `{${held.map(({ fence }) => fence)}}`
  const jobsOf = (blocks: readonly ClaimBlock[] | null): ClaimedJob[] | null =>
    blocks?.flatMap(readClaimBlock) ?? null

  return {
    /** From the start of each place. Null: a queue is just being paused. */
    claim: async (
      worker: string,
      count = 1,
      {
        lanes = [1],
        priorities = lanes.map(() => 0),
        afters = lanes.map(() => 0),
      }: { lanes?: number[]; priorities?: number[]; afters?: number[] } = {},
    ): Promise<ClaimedJob[] | null> =>
      jobsOf(
        await read(claimAtCursors, [
          ...[textArray([worker]), `{${count}}`, `{${lanes}}`, `{${priorities}}`, `{${afters}}`],
          `{${lanes.map(() => leaseMs)}}`,
        ]),
      ),
    probe: async (worker: string, count = 1, lanes = [1]): Promise<ClaimedJob[] | null> =>
      jobsOf(
        (
          await read<{ blocks: ClaimBlock[] } | null>(scanJobs, [
            ...[textArray([worker]), `{${count}}`, `{${lanes}}`],
            `{${lanes.map(() => leaseMs)}}`,
          ])
        )?.blocks ?? null,
      ),
    claimCarefully: async (worker: string, count = 1, lanes = [1]): Promise<Careful | null> => {
      const values = [worker, `${count}`, `{${lanes}}`, `{${lanes.map(() => leaseMs)}}`]
      const answer = await read<{ blocks: ClaimBlock[]; quarantined: number[]; stuck: number[] } | null>(
        claimOneByOne,
        values,
      )
      return answer && { ...answer, jobs: answer.blocks.flatMap(readClaimBlock) }
    },
    promote: (limit = 10) =>
      read<{ count: number; queues: string[]; dueInMs: number | null }>(promoteJobs, [`${limit}`]),
    expire: async (limit = 10): Promise<number> => Number(await ask(expireJobs, [`${limit}`])),
    /** The ids of those that it has ended. */
    complete: async (
      held: readonly Held[],
      { results = null, keepDays = [7] }: { results?: readonly unknown[] | null; keepDays?: number[] } = {},
    ): Promise<number[]> => {
      const values = [idsOf(held), fencesOf(held), results && JSON.stringify(results), `{${keepDays}}`]
      const result = await read<{ done: number[] } | null>(completeJobs, values)
      return result?.done ?? held.map(({ id }) => id)
    },
    completeOne: async ({ id, fence }: Held, tx?: Transaction, keepDays = 7): Promise<string> =>
      `${await ask(completeJob, [`${id}`, `${fence}`, null, `${keepDays}`, WAIT_MS], tx)}`,
    /** Without those that others have locked. */
    settle: async (...items: readonly Settling[]) => {
      const result = await read<{ id: number; state: string }[]>(settleJobs, [JSON.stringify(items)])
      return result.filter(({ state }) => state !== 'locked')
    },
    settleOne: async (item: Settling): Promise<string> =>
      `${await ask(settleJob, [JSON.stringify(item), WAIT_MS])}`,
    beat: (held: readonly Held[], workers: readonly string[] = []) =>
      read<Beaten>(renewLeases, [
        ...[textArray(workers), idsOf(held), fencesOf(held)],
        `{${held.map(() => leaseMs)}}`,
      ]),
    tell: async ({ id, fence }: Held, progress: unknown, ms = leaseMs): Promise<string> =>
      `${await ask(reportProgress, [`${id}`, `${fence}`, JSON.stringify(progress), `${ms}`, WAIT_MS])}`,
    recover: async (limit = 10, over: readonly number[] = []) =>
      (await read<{ lost: Recovered[]; isMore: boolean }>(recoverJobs, [`${limit}`, `{${over}}`])).lost,
    cancel: async (id: number): Promise<string> =>
      (
        await read<{ state: string }>(cancelJob, [
          ...[`${id}`, '{"name": "JobCanceledError", "message": "no more"}', WAIT_MS],
        ])
      ).state,
    redrive: (...ids: number[]) => read<{ ids: number[]; queues: string[] }>(redriveJobs, [`{${ids}}`]),
    discard: async (...ids: number[]): Promise<number[]> =>
      `${await ask(discardJobs, [`{${ids}}`])}`.slice(1, -1).split(',').filter(Boolean).map(Number),
    pause: (queue = 'q') => ask(pauseQueue, [queue, 'operator', WAIT_MS]),
    resume: (queue = 'q') => ask(resumeQueue, [queue]),
  }
}
