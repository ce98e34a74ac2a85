import { BusyError } from '../errors.js'
import { wholeNumber } from '../options/number-options.js'
import { checked } from '../options/option.js'
import { optionTable } from '../options/option-table.js'
import type { Database } from '../postgres/database.js'
import { emit } from '../postgres/events.js'
import { hasWaitedInVain } from '../postgres/fault.js'
import { checkKey, checkText } from '../postgres/key.js'
import { ANY_TEXT, decodeCursor, type Page, type PageOptions, pageOptions, toPage } from '../postgres/page.js'
import { dateFromMicros, type TextRow } from '../postgres/text-values.js'
import { nameHolder } from '../postgres/this-process.js'
import type { Wakeups } from '../postgres/wakeups.js'
import { lockOrigin, lockTopic } from './lock-notifications.js'
import { forceReleaseLock, inspectLock, listLocks } from './lock-statements.js'

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

export const lockFilter = optionTable<LockFilter>()('dibs.locks.list, filter', { prefix: checked(checkText) })

export const forceReleaseOptions = optionTable<ForceReleaseOptions>()('dibs.locks.forceRelease', {
  ifFence: wholeNumber({ min: Number.MIN_SAFE_INTEGER }),
})

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
    const { prefix = '' } = lockFilter.read(filter)
    const { limit, cursor } = pageOptions.read(page)
    const after = decodeCursor('locks', cursor, [ANY_TEXT, PERMIT]) ?? ['', '-1']
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
    const { ifFence } = forceReleaseOptions.read(options)
    const values = [name, ifFence === undefined ? null : String(ifFence), String(WAIT_MS)]
    const [row] = await this.#database.send(forceReleaseLock, values, { waitMs: WAIT_MS }).catch((error) => {
      if (!hasWaitedInVain(error)) throw error
      const subject = `an open transaction that holds lock "${name}", which cannot be taken away from it`
      throw new BusyError(subject, WAIT_MS, 1_000, { cause: error })
    })
    const result: Forced = JSON.parse(`${row?.result}`)
    for (const { fence } of result.taken)
      emit('dibs:lock.stolen', {
        ...lockOrigin(this.#database, name),
        how: 'force',
        fromFence: fence,
        idleMs: 0,
      })
    if (result.isWanted) this.#wakeups.notify(lockTopic(name))
    return { released: result.taken.length }
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
