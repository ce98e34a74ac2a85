import type { DedicatedConnection } from '../postgres/dedicated-connection.js'
import { emit } from '../postgres/events.js'
import { sleep } from '../postgres/sleep.js'
import type { Statement } from '../postgres/statement.js'
import { textArray } from '../postgres/text-values.js'
import { type ClaimBlock, type ClaimedJob, readClaimBlock } from './claimed-job.js'
import type { EngineContext } from './engine-context.js'
import { claimAtCursors, claimOneByOne, releaseOrphans, scanJobs } from './job-statements.js'
import type { LaneStart } from './lane-cursors.js'

/** The jobs of one name and version in a queue. */
export interface Lane {
  readonly id: number
  readonly queue: string
  readonly leaseMs: number
}

/** A worker, for which jobs are claimed. */
export interface Claimant {
  readonly id: string
  /** The number of jobs that the worker has room for. */
  readonly room: number
  /** Reserves room for a claim of `count` jobs in flight. A negative `count` frees the room when the claim has ended. */
  reserve(count: number): void
  take(jobs: readonly ClaimedJob[], sentAt: number): void
  /** The jobs whose handlers run, even if they were lost. */
  readonly running: Iterable<number>
}

/** The number of jobs to claim for each worker. */
export type Demand = readonly { readonly claimant: Claimant; readonly count: number }[]

interface Claimed {
  readonly jobs: readonly ClaimedJob[]
  /** True if there were as many jobs as requested. */
  readonly isFull: boolean
  readonly tookMs: number
}

interface Scanned extends Claimed {
  /** Where each lane begins, among the jobs that were not claimed. */
  readonly tops: readonly LaneStart[]
}

/** The answer of `job_claim_one_by_one`. */
interface ClaimedOneByOne {
  readonly blocks: readonly ClaimBlock[]
  readonly quarantined: readonly number[]
  readonly stuck: readonly number[]
}

/** The delay before a claim is repeated while a queue is being paused. */
const PAUSED_MS = 20

/** Claims jobs of some lanes, and hands them to their workers. */
export class LaneClaimer {
  readonly #engine: EngineContext
  readonly #lanes: readonly Lane[]
  #turn = 0

  constructor(engine: EngineContext, lanes: readonly Lane[]) {
    this.#engine = engine
    this.#lanes = lanes
  }

  /** Claims behind the jobs that this process has claimed before. */
  async claimAtCursors(demand: Demand): Promise<Claimed> {
    const { cursors, claims } = this.#engine
    const positions = cursors.positions(this.#lanes.map(({ id }) => id))
    const leases = new Map(this.#lanes.map(({ id, leaseMs }) => [id, leaseMs]))
    return await this.#claim(claims, demand, claimAtCursors, [
      numbers(positions.map(({ lane }) => lane)),
      numbers(positions.map(({ priority }) => priority)),
      numbers(positions.map(({ after }) => after)),
      numbers(positions.map(({ lane }) => leases.get(lane) as number)),
    ])
  }

  /** Claims by a full scan, which reads the lanes from their start. */
  async scan(demand: Demand, connection: DedicatedConnection): Promise<Scanned> {
    const turn = this.#turn++ % this.#lanes.length
    const lanes = [...this.#lanes.slice(turn), ...this.#lanes.slice(0, turn)]
    return await this.#claim(connection, demand, scanJobs, laneValues(lanes))
  }

  /** Claims one job at a time, and quarantines each job that cannot be claimed. */
  async claimOneByOne(claimant: Claimant, count: number) {
    claimant.reserve(count)
    try {
      const sentAt = performance.now()
      const values = [claimant.id, String(count), ...laneValues(this.#lanes)]
      const [row] = await this.#engine.claims.send(claimOneByOne, values)
      if (row?.result == null) return undefined
      const { blocks, quarantined, stuck }: ClaimedOneByOne = JSON.parse(row.result)
      for (const id of [...quarantined, ...stuck])
        emit('dibs:job.quarantined', {
          ...this.#engine.origin,
          id: String(id),
          isSetAside: quarantined.includes(id),
        })
      return {
        claimed: this.#handOut(blocks, [{ claimant, count }], sentAt).length,
        quarantined: quarantined.length,
        stuck: stuck.length,
      }
    } finally {
      claimant.reserve(-count)
    }
  }

  /** Releases the jobs of claims whose answers were lost. */
  async releaseOrphans(claimants: readonly Claimant[]): Promise<void> {
    const held = [...this.#engine.heartbeat.attempts].map(({ job }) => job.id)
    // A job whose handler runs is no orphan, even if it was lost: its lease decides.
    const known = new Set([...held, ...claimants.flatMap(({ running }) => [...running])])
    await this.#engine.claims.send(releaseOrphans, [
      textArray(claimants.map(({ id }) => id)),
      numbers([...known]),
    ])
  }

  async #claim(
    connection: DedicatedConnection,
    demand: Demand,
    statement: Statement,
    rest: readonly string[],
  ): Promise<Scanned> {
    for (const { claimant, count } of demand) claimant.reserve(count)
    try {
      const workers = textArray(demand.map(({ claimant }) => claimant.id))
      const values = [workers, numbers(demand.map(({ count }) => count)), ...rest]
      // While a queue is being paused, the answer is null.
      for (;;) {
        const sentAt = performance.now()
        const [row] = await connection.send(statement, values)
        const tookMs = performance.now() - sentAt
        if (row?.result == null) await sleep(PAUSED_MS)
        else {
          const result:
            | readonly ClaimBlock[]
            | { blocks: readonly ClaimBlock[]; tops: readonly LaneStart[] } = JSON.parse(row.result)
          const { blocks, tops } = 'tops' in result ? result : { blocks: result, tops: [] }
          const jobs = this.#handOut(blocks, demand, sentAt)
          return { jobs, isFull: jobs.length >= sum(demand), tops, tookMs }
        }
      }
    } finally {
      for (const { claimant, count } of demand) claimant.reserve(-count)
    }
  }

  #handOut(blocks: readonly ClaimBlock[], demand: Demand, sentAt: number): ClaimedJob[] {
    const jobs: ClaimedJob[] = []
    for (const block of blocks) {
      const own = readClaimBlock(block)
      jobs.push(...own)
      // A worker that has stopped meanwhile releases them.
      demand.find(({ claimant }) => claimant.id === block.worker)?.claimant.take(own, sentAt)
    }
    this.#engine.cursors.advance(jobs)
    return jobs
  }
}

const numbers = (values: readonly number[]): string => `{${values.join(',')}}`

const laneValues = (lanes: readonly Lane[]): [string, string] => [
  numbers(lanes.map(({ id }) => id)),
  numbers(lanes.map(({ leaseMs }) => leaseMs)),
]

const sum = (demand: Demand): number => demand.reduce((total, { count }) => total + count, 0)
