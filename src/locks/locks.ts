import { BusyError, InvalidInputError } from '../errors.js'
import { checkOptions } from '../postgres/check-options.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { checkCharacters, checkKey } from '../postgres/key.js'
import { nameGiven } from '../postgres/name-given.js'
import {
  ANY_TEXT,
  checkPageLimit,
  decodeCursor,
  PAGE_OPTIONS,
  type Page,
  type PageOptions,
  toPage,
} from '../postgres/page.js'
import { dateFromMicros, type TextRow } from '../postgres/text-values.js'
import { nameHolder } from '../postgres/this-process.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { originOf, topicOf } from './lock-origin.js'
import { forceLock, inspectLock, listLocks } from './lock-statements.js'

/** A held lock: one entry for each permit that is taken. */
export interface LockInfo {
  readonly name: string
  readonly permit: number
  readonly holder: string
  readonly fence: number
  readonly acquiredAt: Date
  /** When the lease ends, unless it is renewed. */
  readonly leaseUntil: Date
}

export interface LockFilter {
  /** Only locks whose name begins with this prefix. Default: all. */
  readonly prefix?: string | undefined
}

export interface ForceReleaseOptions {
  /** Release the lock only if it still has this fence. The holder that an operator has seen may be gone by now. */
  readonly ifFence?: number | undefined
}

/** Matches the number of a permit in a cursor. */
const PERMIT = /^-?\d{1,4}$/

/** The longest wait for other calls that lock the same row for a moment. */
const WAIT_MS = 5_000

/** Held locks, for operators. */
export class Locks {
  readonly #database: Database
  readonly #wakeups: Wakeups

  constructor(database: Database, wakeups: Wakeups) {
    this.#database = database
    this.#wakeups = wakeups
  }

  /**
   * Lists the locks that are held now, in the order of their names.
   *
   * @example
   * const { items } = await dibs.locks.list({ prefix: 'till:' }, { limit: 50 })
   * for (const { name, holder, leaseUntil } of items) console.log(name, holder, leaseUntil)
   */
  async list(filter: LockFilter = {}, page: PageOptions = {}): Promise<Page<LockInfo>> {
    checkOptions(filter, ['prefix'])
    checkOptions(page, PAGE_OPTIONS)
    const { prefix = '' } = filter
    if (typeof prefix !== 'string')
      throw new InvalidInputError('prefix', `must be a string, not ${nameGiven(prefix)}`)
    checkCharacters('prefix', prefix)
    const limit = checkPageLimit(page.limit)
    const after = decodeCursor('locks', page.cursor, [ANY_TEXT, PERMIT]) ?? ['', '-1']
    const rows = await this.#database.send(listLocks, [prefix, ...after, String(limit + 1)])
    return toPage('locks', rows, limit, (row) => [`${row.name}`, `${row.permit}`], readInfo)
  }

  /**
   * Lists the holders of a lock: one for each permit whose lease has not expired.
   *
   * @example
   * const [holder] = await dibs.locks.inspect('nightly-report')
   */
  async inspect(name: string): Promise<readonly LockInfo[]> {
    const rows = await this.#database.send(inspectLock, [checkKey('name', name)])
    return rows.map(readInfo)
  }

  /**
   * Takes a lock away from its holder. That holder can no longer renew the lock, nor guard transactions that begin later, and learns of the loss when it
   * tries. Transactions that are already guarded go on, and the next holder waits for them. Work of the old holder without `guard` is not stopped.
   *
   * A lock that an open transaction holds cannot be taken away: `BusyError`.
   *
   * @returns `released`: how many permits were taken away
   * @example
   * const [stuck] = await dibs.locks.inspect('nightly-report')
   * if (stuck) await dibs.locks.forceRelease('nightly-report', { ifFence: stuck.fence })
   */
  async forceRelease(
    name: string,
    options: ForceReleaseOptions = {},
  ): Promise<{ readonly released: number }> {
    checkKey('name', name)
    checkOptions(options, ['ifFence'])
    const { ifFence } = options
    if (ifFence !== undefined && !Number.isSafeInteger(ifFence))
      throw new InvalidInputError(
        'ifFence',
        `must be a fence, which is a whole number, not ${typeof ifFence === 'number' ? ifFence : nameGiven(ifFence)}`,
      )
    const values = [name, ifFence === undefined ? null : String(ifFence), String(WAIT_MS)]
    const [row] = await this.#database.sendWaiting(WAIT_MS, forceLock, values).catch((error) => {
      if (!hasWaitedInVain(error)) throw error
      const subject = `an open transaction that holds lock "${name}", which cannot be taken away from it`
      throw new BusyError(subject, WAIT_MS, 1_000, { cause: error })
    })
    const told: Forced = JSON.parse(`${row?.told}`)
    for (const { fence } of told.taken)
      emit('dibs:lock.stolen', {
        ...originOf(this.#database, name),
        how: 'force',
        fromFence: fence,
        idleMs: 0,
      })
    if (told.isWanted) this.#wakeups.hint(topicOf(name))
    return { released: told.taken.length }
  }
}

interface Forced {
  readonly isWanted: boolean
  readonly taken: readonly { readonly fence: number }[]
}

const readInfo = (row: TextRow): LockInfo => ({
  name: `${row.name}`,
  permit: Number(row.permit),
  holder: nameHolder(`${row.holder}`),
  fence: Number(row.fence),
  acquiredAt: dateFromMicros(`${row.acquiredAt}`),
  leaseUntil: dateFromMicros(`${row.expiresAt}`),
})
