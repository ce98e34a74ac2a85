import { InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { nameGiven } from '../postgres/name-given.js'
import {
  checkPageLimit,
  decodeCursor,
  PAGE_OPTIONS,
  type Page,
  type PageOptions,
  toPage,
  WHOLE_NUMBER,
} from '../postgres/page.js'
import { textArray } from '../postgres/text-values.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { queueTopic } from './add-jobs.js'
import { type JobRecord, readRecord } from './job-record.js'
import { assertAllNamed, isRef, readTarget, unknownName } from './job-ref.js'
import type { ReadDefinition } from './job-spec.js'
import { discardJobs, redriveJobs } from './job-statements.js'
import { listDead } from './record-statements.js'

/** Which dead jobs to list. */
export interface DeadFilter {
  /** Jobs of this name. Default: of all names that are defined here. */
  readonly name?: string | undefined
  /** Jobs whose error contains this text in its name, code or message. */
  readonly error?: string | undefined
}

/** Which dead jobs to change. `name`, `error` or `all: true` is required. */
export interface DeadChoice extends DeadFilter {
  /** All dead jobs of the names that are defined here, or all that match `name` and `error`. */
  readonly all?: boolean | undefined
  /** Not a filter: an object with an `id` is a reference to one job. */
  readonly id?: undefined
}

/** One job, several, or all that match: each job is an id or a reference. */
type Which = string | object | readonly (string | object)[]

const MOST = 1_000
/** The name of this list in its cursors. */
const LIST = 'dead'
const FIRST_PLACE = ['0', '0']

/** Dead jobs. A dead job stays in its table until somebody redrives or discards it. */
export class DeadJobs {
  readonly #database: Database
  readonly #wakeups: Wakeups
  readonly #definitions: ReadonlyMap<string, ReadDefinition>

  constructor(
    { database, wakeups }: { database: Database; wakeups: Wakeups },
    definitions: ReadonlyMap<string, ReadDefinition>,
  ) {
    this.#database = database
    this.#wakeups = wakeups
    this.#definitions = definitions
  }

  async list(filter: DeadFilter, page: PageOptions): Promise<Page<JobRecord>> {
    checkOptions(filter, ['name', 'error'])
    checkOptions(page, PAGE_OPTIONS)
    const limit = checkPageLimit(page.limit)
    const after = decodeCursor(LIST, page.cursor, [WHOLE_NUMBER, WHOLE_NUMBER])
    const rows = await this.#list(filter, after ?? FIRST_PLACE, limit + 1)
    return toPage(LIST, rows, limit, ({ lane, id }) => [`${lane}`, `${id}`], readRecord)
  }

  async #list({ name, error }: DeadFilter, [lane, id]: readonly string[], limit: number) {
    if (error !== undefined && (typeof error !== 'string' || error === '' || error.includes('\0')))
      throw new InvalidInputError('error', `must be a text, not ${nameGiven(error)}`)
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
      const told: { ids: number[]; queues: string[] } = JSON.parse(`${row?.told}`)
      done.push(...told.ids.map(String))
      for (const queue of told.queues) this.#wakeups.hint(queueTopic(queue))
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
      const targets = [which].flat().map((one) => readTarget(one, this.#definitions))
      // Check all references before the first change.
      for (const batch of batchesOf(targets)) await assertAllNamed(this.#database, batch)
      for (const batch of batchesOf(targets)) yield batch.map(({ id }) => id)
      return
    }
    const filter = readChoice(which)
    let place: readonly string[] = FIRST_PLACE
    for (;;) {
      const rows = await this.#list(filter, place, MOST)
      if (rows.length > 0) yield rows.map(({ id }) => `${id}`)
      const last = rows.at(-1)
      if (rows.length < MOST || !last) return
      place = [`${last.lane}`, `${last.id}`]
    }
  }
}

function* batchesOf<T>(all: readonly T[]): Generator<readonly T[]> {
  for (let from = 0; from < all.length; from += MOST) yield all.slice(from, from + MOST)
}

/** A filter whose only field is undefined must not match everything. */
function readChoice(which: unknown): DeadFilter {
  if (typeof which !== 'object' || which === null)
    throw new InvalidInputError(
      'which',
      `must be an id, a reference, an array of these, or a filter { name, error }, not ${nameGiven(which)}`,
    )
  checkOptions(which, ['name', 'error', 'all'])
  const { all = false, ...filter } = which as DeadChoice
  if (typeof all !== 'boolean')
    throw new InvalidInputError('all', `must be true or false, not ${nameGiven(all)}`)
  if (!all && filter.name === undefined && filter.error === undefined)
    throw new InvalidInputError('which', 'must name something (`name`, `error`), or say `{ all: true }`')
  return filter
}
