import { InvalidInputError } from '../errors.js'
import { checkAmount } from '../postgres/check-amount.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { nameGiven, showGiven } from '../postgres/name-given.js'
import { refuseValue } from '../postgres/refuse-value.js'
import { textArray } from '../postgres/text-values.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { queueTopic } from './add-jobs.js'
import { type JobRecord, readRecord } from './job-record.js'
import { checkId } from './job-results.js'
import type { ReadDefinition } from './job-spec.js'
import { discardJobs, redriveJobs } from './job-statements.js'
import { listDead } from './record-statements.js'

/** Which dead jobs. */
export interface DeadFilter {
  /** Of one name. Default: of all that are defined here. */
  readonly name?: string | undefined
  /** A text that its error holds: its name, its code, a part of its message. */
  readonly error?: string | undefined
}

/** Which of them are to be changed: it must name something, or say that it means all. */
export interface DeadChoice extends DeadFilter {
  /** All that are dead and defined here; or all that match, if something is named. */
  readonly all?: boolean | undefined
}

export interface ListDeadOptions extends DeadFilter {
  /** How many at most: 1 to 1,000. Default 100. */
  readonly limit?: number | undefined
  /** `next` of the page before. */
  readonly after?: string | undefined
}

export interface DeadPage {
  readonly jobs: readonly JobRecord[]
  /** Where the next page begins; undefined: there is none. */
  readonly next: string | undefined
}

const MOST = 1_000

/** Dead letters: they stay where they are until somebody decides. */
export class DeadJobs {
  readonly #database: Database
  readonly #wakeups: Wakeups
  readonly #definitions: readonly ReadDefinition[]

  constructor(
    { database, wakeups }: { database: Database; wakeups: Wakeups },
    definitions: readonly ReadDefinition[],
  ) {
    this.#database = database
    this.#wakeups = wakeups
    this.#definitions = definitions
  }

  async list(options: ListDeadOptions): Promise<DeadPage> {
    checkOptions(options, ['name', 'error', 'limit', 'after'])
    const { limit = 100, after = '0:0', ...filter } = options
    if (checkAmount('limit', limit) > MOST) throw new InvalidInputError('limit', `must be at most ${MOST}`)
    const place = typeof after === 'string' ? /^(\d{1,10}):(\d{1,16})$/.exec(after) : null
    if (!place) throw refuseValue('after', 'must be `next` of the page before')
    // One more tells whether there is a next page.
    const found = await this.#list(filter, place.slice(1), limit + 1)
    const rows = found.slice(0, limit)
    const last = rows.at(-1)
    return {
      jobs: rows.map(readRecord),
      next: found.length > limit && last ? `${last.lane}:${last.id}` : undefined,
    }
  }

  async #list({ name, error }: DeadFilter, [lane, id]: readonly (string | undefined)[], limit: number) {
    if (error !== undefined && (typeof error !== 'string' || error === '' || error.includes('\0')))
      throw new InvalidInputError('error', `must be a text, not ${nameGiven(error)}`)
    const defined = this.#definitions.filter((one) => name === undefined || one.name === name)
    if (defined.length === 0)
      throw new InvalidInputError(
        'name',
        `is of no job that is defined here: ${showGiven(name)}; there are ${this.#definitions.map((one) => one.name).join(', ')}`,
      )
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

  async redrive(
    which: string | readonly string[] | DeadChoice,
  ): Promise<{ readonly ids: readonly string[] }> {
    const done: string[] = []
    for await (const ids of this.#batches(which)) {
      const [row] = await this.#database.send(redriveJobs, [`{${ids.join(',')}}`])
      const told: { ids: number[]; queues: string[] } = JSON.parse(`${row?.told}`)
      done.push(...told.ids.map(String))
      for (const queue of told.queues) this.#wakeups.hint(queueTopic(queue))
    }
    return { ids: done }
  }

  async discard(
    which: string | readonly string[] | DeadChoice,
  ): Promise<{ readonly ids: readonly string[] }> {
    const done: string[] = []
    for await (const ids of this.#batches(which)) {
      const [row] = await this.#database.send(discardJobs, [`{${ids.join(',')}}`])
      done.push(...`${row?.ids}`.slice(1, -1).split(',').filter(Boolean))
    }
    return { ids: done }
  }

  /** Ids, a batch at a time: those that were given, or those that match. */
  async *#batches(which: string | readonly string[] | DeadChoice): AsyncGenerator<readonly string[]> {
    if (typeof which === 'string' || Array.isArray(which)) {
      const ids = [which].flat().map(checkId)
      for (let from = 0; from < ids.length; from += MOST) yield ids.slice(from, from + MOST)
      return
    }
    const filter = readChoice(which)
    let place: readonly string[] = ['0', '0']
    for (;;) {
      const rows = await this.#list(filter, place, MOST)
      if (rows.length > 0) yield rows.map(({ id }) => `${id}`)
      const last = rows.at(-1)
      if (rows.length < MOST || !last) return
      place = [`${last.lane}`, `${last.id}`]
    }
  }
}

/** A filter whose only field turned out to be undefined must not take everything. */
function readChoice(which: unknown): DeadFilter {
  if (typeof which !== 'object' || which === null)
    throw new InvalidInputError(
      'which',
      `must be an id, an array of ids, or a filter { name, error }, not ${nameGiven(which)}`,
    )
  checkOptions(which, ['name', 'error', 'all'])
  const { all = false, ...filter } = which as DeadChoice
  if (typeof all !== 'boolean')
    throw new InvalidInputError('all', `must be true or false, not ${nameGiven(all)}`)
  if (!all && filter.name === undefined && filter.error === undefined)
    throw new InvalidInputError('which', 'must name something (`name`, `error`), or say `{ all: true }`')
  return filter
}
