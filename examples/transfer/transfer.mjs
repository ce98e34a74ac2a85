// Money from one account to another: whole minor units, both rows locked in the order of their key, nothing below zero.
import { BusinessRuleError, InsufficientError } from 'dibs'

/** The accounts: `id` and a `balance` in cents. The check holds also against whoever does not come this way. */
export const ACCOUNTS = `create table if not exists account (
  id text primary key,
  balance bigint not null check (balance >= 0)
)`

/**
 * Without `tx` a transaction of its own, which runs again after a conflict. Throws `NotFoundError` for an account that is not
 * there, and `BusinessRuleError` with the rule `insufficient-funds`, `same-account` or `invalid-amount`; then nothing has moved.
 *
 * @param {import('dibs').Dibs} dibs
 * @param {{ from: string, to: string, amount: number | bigint }} order amount in cents
 * @param {import('dibs').Tx} [tx]
 */
export async function transfer(dibs, { from, to, amount }, tx) {
  const isWhole = typeof amount === 'bigint' || Number.isSafeInteger(amount)
  if (!isWhole || amount <= 0) throw new BusinessRuleError(`${amount} is no amount`, 'invalid-amount')
  if (from === to) throw new BusinessRuleError('both accounts are the same', 'same-account')
  if (!tx) return dibs.transaction((own) => move(dibs, { from, to, amount }, own))
  return move(dibs, { from, to, amount }, tx)
}

async function move(dibs, { from, to, amount }, tx) {
  // Both at once, in the order of the key: a transfer the other way waits here, before it holds anything.
  await dibs.rows.lock('account', [from, to], { tx })
  try {
    await dibs.rows.adjust('account', from, { balance: -BigInt(amount) }, { tx })
  } catch (error) {
    if (error?.code !== InsufficientError.entry.code) throw error
    throw new BusinessRuleError(`account ${from} has ${error.current}`, 'insufficient-funds', {
      cause: error,
    })
  }
  await dibs.rows.adjust('account', to, { balance: BigInt(amount) }, { tx })
}
