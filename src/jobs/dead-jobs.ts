import { InvalidInputError } from '../errors.js'
import { nameGiven } from '../options/name-given.js'
import { unchecked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import { boolean } from '../options/value-options.js'
import type { Database } from '../postgres/database.js'
import {
  decodeCursor,
  type Page,
  type PageOptions,
  pageOptions,
  toPage,
  WHOLE_NUMBER,
} from '../postgres/page.js'
import { textArray } from '../postgres/text-values.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { listDead } from './inspection-queries.js'
import type { ResolvedDefinition } from './job-definition.js'
import { type JobRecord, readRecord } from './job-record.js'
import { assertAllNamed, isRef, resolveTarget, unknownName } from './job-ref.js'
import { discardJobs, redriveJobs } from './job-statements.js'
import { queueTopic } from './job-topics.js'
import { storedString } from './stored-string.js'

/** Which dead jobs to list. */
export interface DeadFilter {
  /** Jobs of this name. Default: of all names that are defined here. */
  readonly name?: string | undefined
  /** Jobs whose error contains this string in its name, code or message. At most 1,000 characters. */
  readonly error?: string | undefined
}

/** Which dead jobs to change. `name`, `error` or `all: true` is required. */
export interface DeadChoice extends DeadFilter {
  /** All dead jobs of the names that are defined here, or all that match `name` and `error`. */
  readonly all?: boolean | undefined
  /** Not a filter: an object with an `id` is a reference to one job. */
  readonly id?: undefined
}

export const deadFilter = optionTable<DeadFilter>()('jobs.dead, filter', {
  name: unchecked(), // by the definitions of this process
  error: storedString({ min: 1, max: 1_000 }),
})

export const deadChoice = optionTable<Omit<DeadChoice, 'id'>>()('jobs.redrive, jobs.discard', {
  ...deadFilter.fields,
  all: boolean({ default: false }),
})

/** One job, several, or all that match: each job is an id or a reference. */
type Which = string | object | readonly (string | object)[]

const MAX_BATCH = 1_000
/** The name of this list in its cursors. */
const LIST = 'dead'
const FIRST_PLACE = ['0', '0']

/** Dead jobs. A dead job stays in its table until somebody redrives or discards it. */
export class DeadJobs {
  readonly #database: Database
  readonly #wakeups: Wakeups
  readonly #definitions: ReadonlyMap<string, ResolvedDefinition>

  constructor(
    { database, wakeups }: { database: Database; wakeups: Wakeups },
    definitions: ReadonlyMap<string, ResolvedDefinition>,
  ) {
    this.#database = database
    this.#wakeups = wakeups
    this.#definitions = definitions
  }

  async list(filter: DeadFilter, page: PageOptions): Promise<Page<JobRecord>> {
    const read = deadFilter.read(filter)
    const { limit, cursor } = pageOptions.read(page)
    const after = decodeCursor(LIST, cursor, [WHOLE_NUMBER, WHOLE_NUMBER])
    const rows = await this.#list(read, after ?? FIRST_PLACE, limit + 1)
    return toPage(LIST, rows, limit, ({ lane, id }) => [`${lane}`, `${id}`], readRecord)
  }

  async #list({ name, error }: DeadFilter, [lane, id]: readonly string[], limit: number) {
    const all = [...this.#definitions.values()]
    const defined = name === undefined ? all : all.filter((one) => one.name === name)
    if (defined.length === 0) throw unknownName(name, this.#definitions.keys())
    const of = (field: 'queue' | 'name') => textArray(defined.map((one) => one[field]))
    return await this.#database.send(listDead, [
      of('queue'),
      of('name'),
      `${lane}`,
      `${id}`,
      error ?? null,
      String(limit),
    ])
  }

  async redrive(which: Which): Promise<{ readonly ids: readonly string[] }> {
    const done: string[] = []
    for await (const ids of this.#batches(which)) {
      const [row] = await this.#database.send(redriveJobs, [`{${ids.join(',')}}`])
      const result: { ids: number[]; queues: string[] } = JSON.parse(`${row?.result}`)
      done.push(...result.ids.map(String))
      for (const queue of result.queues) this.#wakeups.notify(queueTopic(queue))
    }
    return { ids: done }
  }

  async discard(which: Which): Promise<{ readonly ids: readonly string[] }> {
    const done: string[] = []
    for await (const ids of this.#batches(which)) {
      const [row] = await this.#database.send(discardJobs, [`{${ids.join(',')}}`])
      done.push(...`${row?.ids}`.slice(1, -1).split(',').filter(Boolean))
    }
    return { ids: done }
  }

  /** Yields batches of ids: of the jobs that `which` names, or of those that match the filter. */
  async *#batches(which: Which): AsyncGenerator<readonly string[]> {
    if (typeof which === 'string' || Array.isArray(which) || isRef(which)) {
      const targets = [which].flat().map((one) => resolveTarget(one, this.#definitions))
      // Check all references before the first change.
      for (const batch of batchesOf(targets)) await assertAllNamed(this.#database, batch)
      for (const batch of batchesOf(targets)) yield batch.map(({ id }) => id)
      return
    }
    const filter = readChoice(which)
    let place: readonly string[] = FIRST_PLACE
    for (;;) {
      const rows = await this.#list(filter, place, MAX_BATCH)
      if (rows.length > 0) yield rows.map(({ id }) => `${id}`)
      const last = rows.at(-1)
      if (rows.length < MAX_BATCH || !last) return
      place = [`${last.lane}`, `${last.id}`]
    }
  }
}

function* batchesOf<T>(all: readonly T[]): Generator<readonly T[]> {
  for (let from = 0; from < all.length; from += MAX_BATCH) yield all.slice(from, from + MAX_BATCH)
}

/** A filter whose only field is undefined must not match everything. */
function readChoice(which: unknown): DeadFilter {
  if (typeof which !== 'object' || which === null)
    throw new InvalidInputError(
      'which',
      `must be an id, a reference, an array of these, or a filter { name, error }, not ${nameGiven(which)}`,
    )
  const { all, ...filter } = deadChoice.read(which)
  if (!all && filter.name === undefined && filter.error === undefined)
    throw new InvalidInputError('which', 'must name something (`name`, `error`), or say `{ all: true }`')
  return filter
}
