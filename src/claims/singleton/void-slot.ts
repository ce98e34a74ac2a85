import {
  AmbiguousOutcomeError,
  BusyError,
  InProgressError,
  InvalidInputError,
  NestedTransactionError,
} from '../../errors.js'
import { checkFunction } from '../../options/check-function.js'
import { nameGiven } from '../../options/name-given.js'
import { checked, required, unchecked } from '../../options/option.js'
import { optionTable } from '../../options/option-table.js'
import { boolean } from '../../options/value-options.js'
import type { Database } from '../../postgres/database.js'
import type { Tx } from '../../postgres/executor.js'
import { JoinedCall } from '../../postgres/joined-call.js'
import { addressOf, checkKey, nameScope, scopeOfSingleton } from '../../postgres/key.js'
import { readHeld } from '../../postgres/this-process.js'
import { isInside } from '../../postgres/transaction-scope.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import { voidSingleton } from '../acquire/acquire-statements.js'
import { VOID } from '../acquire/singleton-kind.js'
import { type ClaimResult, readResult } from '../claim-result.js'
import { readScope, type Scope } from '../read-scope.js'
import { withSavepoint } from '../with-savepoint.js'

export interface VoidSlotSpec<X extends Tx | undefined = Tx | undefined> {
  /** The scope of the singleton. */
  readonly scope: Scope
  /** The slot that the function got, or the `slot` and `id` of a `SingletonConflictError`. */
  readonly slot: { readonly key: string; readonly id: string }
  /** True (default): the slot can be claimed again in its period. False: the slot stays taken. */
  readonly frees?: boolean | undefined
  /** Your own transaction. The change commits or rolls back with it. */
  readonly tx?: X
}

export const voidSlotSpec = optionTable<VoidSlotSpec>()('dibs.voidSlot', {
  scope: required(unchecked<Scope>()), // by `readScope`
  slot: required(checked<VoidSlotSpec['slot']>(checkSlot)),
  frees: boolean({ default: true }),
  tx: unchecked(),
})

function checkSlot(field: string, slot: unknown): void {
  if (typeof slot !== 'object' || slot === null)
    throw new InvalidInputError(field, `must be an object with key and id, not ${nameGiven(slot)}`)
  checkKey(`${field}.key`, Reflect.get(slot, 'key'))
  checkKey(`${field}.id`, Reflect.get(slot, 'id'))
}

/**
 * Result of `dibs.voidSlot`. If several callers void the same slot, one of them gets `ok: true`. `value` is missing if there was nothing to undo: the
 * function was not run.
 */
export type SlotVoided<T> = { readonly ok: true; readonly value?: T } | { readonly ok: false }

/**
 * Undoes the work of a slot. `result` is the result of the singleton's function. In state `failed` (under a lease) there is no result, and part of the
 * work may have happened.
 */
export type UndoSlot<X, T> = (tx: X, result: unknown, state: 'active' | 'failed') => Promise<T>

/** The type of `dibs.voidSlot`, with an overload for each kind of transaction. */
export interface VoidSlot {
  <T = undefined>(spec: VoidSlotSpec<undefined>, fn?: UndoSlot<Transaction, T>): Promise<SlotVoided<T>>
  <T = undefined, X extends Tx = Tx>(spec: VoidSlotSpec<X>, fn?: UndoSlot<X, T>): Promise<SlotVoided<T>>
}

/** See `Dibs.voidSlot`. */
export function voidSlotOn(database: Database): VoidSlot {
  const run = async (spec: VoidSlotSpec, fn?: UndoSlot<Tx, unknown>): Promise<SlotVoided<unknown>> => {
    const { tx, scope, slot, frees } = voidSlotSpec.read(spec)
    if (fn !== undefined) checkFunction('fn', fn)
    const address = { scope: scopeOfSingleton(readScope(scope)), key: slot.key, id: slot.id, frees }
    if (tx !== undefined) return await withSavepoint(database, tx, () => voidIn(database, tx, address, fn))
    if (isInside(database)) throw new NestedTransactionError('dibs.voidSlot')
    return await database.transaction((own) => voidIn(database, own, address, fn))
  }
  return run as VoidSlot
}

/** How long to wait for other callers that void or claim the slot. */
const WAIT_MS = '5000'

interface SlotToVoid {
  readonly scope: string
  readonly key: string
  readonly id: string
  readonly frees: boolean
}

async function voidIn(
  database: Database,
  tx: Tx,
  { scope, key, id, frees }: SlotToVoid,
  fn: UndoSlot<Tx, unknown> | undefined,
): Promise<SlotVoided<unknown>> {
  const subject = `slot ${key} ${nameScope(scope)}`
  const mark = JSON.stringify({ name: VOID, message: `${subject} was voided.` })
  const startedAt = performance.now()
  const joined = new JoinedCall(database, tx, `dibs.voidSlot of ${subject}`)
  const [row] = await joined.first(voidSingleton, [scope, key, id, String(frees), mark, WAIT_MS])
  const claim = readResult(row)
  if (claim.state === 'busy')
    throw new BusyError(`a transaction that works on ${subject}`, performance.now() - startedAt, 1_000)
  if (claim.state === 'in progress') throw explainPending(scope, subject, claim)
  if (claim.state !== 'voided') return { ok: false }
  const isFailed = claim.status === 'failed'
  // The work of a transaction that failed was rolled back.
  const isUndone = !fn || (isFailed && claim.holder.startsWith('tx:'))
  const result = claim.hasOutcome && !isFailed ? claim.outcome : undefined
  const value = isUndone ? undefined : await fn(tx, result, isFailed ? 'failed' : 'active')
  await joined.close()
  return isUndone ? { ok: true } : { ok: true, value }
}

/** The error if there is nothing to undo yet, or if nobody knows whether there is. */
function explainPending(scope: string, subject: string, claim: ClaimResult): Error {
  const { key, id, attempt, holder, leftMs } = claim
  if (leftMs !== null)
    return new InProgressError(subject, leftMs, id, {
      ...readHeld(claim),
      message: `Another caller works on ${subject} just now, so there is nothing to undo yet. Call again in ${leftMs} ms.`,
    })
  if (holder.startsWith('tx:'))
    return new InProgressError(subject, 1_000, id, {
      message: `This very transaction works on ${subject}, so there is nothing to undo before that function has ended.`,
    })
  const address = JSON.stringify(addressOf(scope, key))
  return new AmbiguousOutcomeError(subject, id, attempt, {
    message: `The caller that worked on ${subject} has no recorded outcome (crash or expired lease), so nobody knows whether there is anything to undo. Find out, then say so: dibs.claims.resolve(${address}, { outcome }) if it was done, and void it then; dibs.claims.resolve(${address}, 'retry') if it was not.`,
  })
}
