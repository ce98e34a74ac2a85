// The work under each key of the storm. The calling processes run it, and the process of the maintenance finishes it.
import { setTimeout as sleep } from 'node:timers/promises'

/** Long enough to connect anew within it, with eight processes on two cores that all do so. */
export const LEASE_MS = 500
export const SCOPE = 'storm'
export const OPERATION = 'storm-operation'

/** An error that is no word on whether the work was done: the claim is given back, and the caller comes again. */
export class PassingError extends Error {
  code = 'PASSING'
}

/** Each key has its own way, the same in every process and in every attempt. */
export function planOf(number, seed) {
  const chance = (salt) => ((Math.imul(number * 8 + salt + seed, 0x9e3779b1) >>> 8) % 1000) / 1000
  return {
    key: `key-${number}`,
    kind: ['leased', 'joined', 'operation'][number % 3],
    ms: 40 + 200 * chance(1),
    hasSteps: number % 2 === 0,
    /** Stops when it is told that its claim is lost. The others go on, as code does that nobody told. */
    heeds: chance(2) < 0.1,
    /** Its first attempt throws after the effect. */
    fails: chance(3) < 0.1,
  }
}

/** A payment service: one charge for an idempotency key, however often it is called. */
async function charge({ world, worldSchema }, id, what, fence) {
  await world.query(
    `with arrived as (insert into ${worldSchema}.arrival (id, what, fence) values ($1, $2, $3))
     insert into ${worldSchema}.effect (id, what) values ($1, $2) on conflict (id) do nothing`,
    [id, what, fence],
  )
  const { rows } = await world.query(`select number from ${worldSchema}.effect where id = $1`, [id])
  return rows[0].number
}

/** Every answer names the fence it was made under: had two attempts answered, the answers would differ. */
export async function workLeased(claim, plan, context) {
  const { key, ms, kind, hasSteps } = plan
  const { fence, attempt } = claim
  const holder = { key, run: String(fence), fence, attempt }
  context.tell({ at: 'begin', ...holder })
  try {
    await sleep(ms / 2)
    if (plan.heeds) claim.signal.throwIfAborted()
    if (kind === 'operation' && hasSteps) return await workInSteps(claim, plan, context)
    const charged = await charge(context, claim.idempotencyKey, key, fence)
    if (kind === 'leased' && plan.fails && attempt === 1) throw new PassingError('try again')
    await sleep(ms / 2)
    return { key, charged, fence }
  } finally {
    context.tell({ at: 'ending', ...holder })
  }
}

async function workInSteps(claim, { key, ms }, context) {
  const { fence, attempt } = claim
  const step = async (name) => {
    let isDone = false
    try {
      return await claim.step(name, async ({ idempotencyKey }) => {
        const charged = await charge(context, idempotencyKey, `${key}/${name}`, fence)
        await sleep(ms / 4)
        isDone = true
        return { charged, fence }
      })
    } catch (error) {
      // No event tells of it if the holder's own clock was first.
      if (isDone && error.code === 'DIBS_FENCE_LOST')
        context.tell({ at: 'refused', key, fence, attempt, how: 'step' })
      throw error
    }
  }
  return { key, pay: await step('pay'), mail: await step('mail'), fence }
}

/** Nothing but the claim keeps the entry from being written twice: its table has no unique column. */
export async function workJoined(tx, run, { key, ms }, { tell, worldSchema }) {
  tell({ at: 'begin', key, run, fence: 0, attempt: 0 })
  try {
    await tx.query(`insert into ${worldSchema}.entry (key, run) values ($1, $2)`, [key, run])
    await sleep(ms)
    return { key, run }
  } finally {
    tell({ at: 'ending', key, run, fence: 0, attempt: 0 })
  }
}
