import { trackJoined } from '../postgres/open-calls.js'
import type { Rows } from './row-executor.js'
import { type Adjust, adjustOn } from './rows/adjust.js'
import { type ClaimRows, claimRowsOn } from './rows/claim-rows.js'
import { type InsertOnce, insertOnceOn } from './rows/insert-once.js'
import { type LastWriteWins, lastWriteWinsOn } from './rows/last-write-wins.js'
import { type LockRows, lockRowsOn } from './rows/row-lock.js'
import { type Transition, transitionOn } from './rows/transition.js'
import { type UpdateRow, updateRowOn } from './rows/update-row.js'

/**
 * Safe reads and writes of rows in your own tables: `dibs.rows`. Each call is one round trip, alone or in your transaction (`tx`).
 *
 * @example
 * await dibs.transaction(async (tx) => {
 *   await dibs.rows.adjust('stock', sku, { left_over: -1 }, { tx })
 *   await dibs.rows.transition('orders', id, { from: 'new', to: 'paid' }, { tx })
 * })
 */
export class TableRows {
  /**
   * Locks rows until the transaction ends, and returns them as they are under the lock, in the order of `ids`. Rows are always locked in the order of
   * their key, so two callers that lock the same rows cannot deadlock.
   *
   * Throws `BusyError` with `blockers` when `waitMs` is over, and `NotFoundError` for an id without a row. Both leave your transaction usable, without any of
   * the locks.
   *
   * @example
   * await dibs.transaction(async (tx) => {
   *   const [from, to] = await dibs.rows.lock('account', [body.from, body.to], { tx, waitMs: 1_000 })
   *   console.log(from, to)
   * })
   */
  readonly lock: LockRows

  /**
   * Writes a row if it still has the version that you read, and adds one to the version. Otherwise `ConflictError` has the current version: read the row
   * again and decide again. Inside `dibs.transaction` the error makes the transaction run again from its start.
   *
   * @example
   * const order = await dibs.rows.update('orders', { id, version: row.version }, { note: 'urgent' })
   */
  readonly update: UpdateRow

  /**
   * Writes the given columns of a row, whatever they hold. If two callers write the same column, the last one wins. Use it for values that are not computed
   * from the old ones.
   *
   * @example
   * await dibs.rows.lastWriteWins('profile', id, { last_seen_at: new Date() })
   */
  readonly lastWriteWins: LastWriteWins

  /**
   * Inserts a row unless a row with the same values in these columns exists. The columns must be those of a unique index. One of all callers inserts
   * the row (`created`); every caller gets the row.
   *
   * @example
   * const { row: user, created } = await dibs.rows.insertOnce('users', ['email'], { email: 'ann@example.org' })
   * if (created) console.log('welcome', user)
   */
  readonly insertOnce: InsertOnce

  /**
   * Moves a row from one of the states in `from` to the state `to`, and writes the columns in `set` with it. One of all callers succeeds. The others get a
   * `StateConflictError` with the `current` state.
   *
   * @example
   * const order = await dibs.rows.transition('orders', id, { from: ['new', 'held'], to: 'paid', set: { paid_at: new Date() } })
   */
  readonly transition: Transition

  /**
   * Claims rows that no other caller has claimed, in one statement that never waits: work to do, tickets to give out. With a
   * `leaseColumn`, a row is claimed for `leaseMs` and becomes free again after that. With a `fenceColumn`, your writes can tell
   * the current holder from a late one.
   *
   * @example
   * const [email] = await dibs.rows.claim<{ id: string; fence: string }>('email', {
   *   where: { sent_at: null },
   *   order: 'created_at',
   *   leaseColumn: 'lease_until',
   *   fenceColumn: 'fence',
   * })
   * if (email) {
   *   await mailer.send(email.id)
   *   await pool.query('update email set sent_at = now() where id = $1 and fence = $2', [email.id, email.fence])
   * }
   */
  readonly claim: ClaimRows

  /**
   * Adds to amounts in a row, or subtracts from them, if each stays between `min` (default 0) and `max`. Otherwise throws `InsufficientError`, and nothing
   * changes. Amounts are exact: whole numbers, or digits as a string.
   *
   * @example
   * const stock = await dibs.rows.adjust('stock', sku, { left_over: -1, reserved: 1 })
   */
  readonly adjust: Adjust

  constructor(rows: Rows) {
    this.lock = trackJoined('rows.lock', 2, lockRowsOn(rows))
    this.update = trackJoined('rows.update', 3, updateRowOn(rows))
    this.lastWriteWins = trackJoined('rows.lastWriteWins', 3, lastWriteWinsOn(rows))
    this.insertOnce = trackJoined('rows.insertOnce', 3, insertOnceOn(rows))
    this.transition = trackJoined('rows.transition', 3, transitionOn(rows))
    this.claim = trackJoined('rows.claim', 1, claimRowsOn(rows))
    this.adjust = trackJoined('rows.adjust', 3, adjustOn(rows))
  }
}
