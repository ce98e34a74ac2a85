import { hostname } from 'node:os'
import type { Engine } from './engine.js'
import type { HandledJob } from './handlers.js'
import { enterWorker, findLane, leaveWorker } from './job-statements.js'
import type { Lane } from './lane-claimer.js'

/** The row of one worker in the database, and the lanes that it takes jobs from. */
export class WorkerRegistration {
  readonly #engine: Engine
  readonly #id: string
  readonly #concurrency: number
  readonly #handled: readonly HandledJob[]
  readonly #byLane = new Map<number, HandledJob>()

  constructor(engine: Engine, id: string, concurrency: number, handled: readonly HandledJob[]) {
    this.#engine = engine
    this.#id = id
    this.#concurrency = concurrency
    this.#handled = handled
  }

  /** The job that is in this lane, with its handler. */
  handledIn(lane: number): HandledJob {
    return this.#byLane.get(lane) as HandledJob
  }

  async enter(signal: AbortSignal): Promise<Lane[]> {
    const lanes: Lane[] = []
    for (const handled of this.#handled) {
      const { queue, name, version, leaseMs } = handled.definition
      const [row] = await this.#engine.claims.send(findLane, [queue, name, String(version)])
      const id = Number(row?.lane)
      this.#byLane.set(id, handled)
      lanes.push({ id, queue, leaseMs })
    }
    signal.throwIfAborted()
    await this.writeRow()
    return lanes.sort((one, other) => one.id - other.id)
  }

  /** Inserts the row of the worker, or restores it: a worker that sent no heartbeat for too long was removed. */
  async writeRow(): Promise<void> {
    const lanes = `{${[...this.#byLane.keys()].join(',')}}`
    const values = [this.#id, hostname(), String(process.pid), lanes, String(this.#concurrency)]
    await this.#engine.maintenance.send(enterWorker, values)
  }

  async leave(): Promise<void> {
    await this.#engine.maintenance.send(leaveWorker, [`{"${this.#id}"}`])
  }
}
