import { actorOf, type Trace } from '../schedule/trace.js'
import type { Anomaly } from './anomaly.js'
import { duplicateClaim } from './duplicate-claim.js'
import type { History } from './history.js'
import { lockRelease } from './lock-release.js'
import { lostUpdate } from './lost-update.js'
import { phantom, readSkew, writeSkew } from './skews.js'

/**
 * The finders, from the most special anomaly to the most general. A duplicate claim is also a lost update or a phantom. A
 * phantom is a write skew whose row did not exist before. A lost update may follow from a lock that was released too soon,
 * which is then the cause. Read skew comes last: most actors that write what depends on a read have also read at two times.
 */
const FINDERS: readonly ((history: History) => Anomaly | undefined)[] = [
  lockRelease,
  duplicateClaim,
  lostUpdate,
  phantom,
  writeSkew,
  readSkew,
]

/**
 * The anomaly that the trace of a failed schedule certainly shows; undefined if there is none, or none is certain. The cause
 * of the failure may still be something else.
 */
export function findAnomaly(trace: Trace, history: History | undefined): Anomaly | undefined {
  const victim = victimOf(trace)
  if (victim && hasFailedBy(trace, victim)) return deadlock(victim)
  for (const find of history ? FINDERS : []) {
    const found = find(history as History)
    if (found) return found
  }
  return victim && deadlock(victim)
}

/** The unit whose statement the server ended because of a deadlock. */
interface Victim {
  readonly unit: string
  /** The name of the step in which it waited. */
  readonly name: string
  /** Which unit waited for which: the other units of the cycle, then the victim. */
  readonly cycle: readonly string[]
}

interface Wait {
  readonly for: readonly string[]
  readonly text: string
}

function victimOf({ steps }: Trace): Victim | undefined {
  const numbers = new Map<string, number>()
  const waits = new Map<string, Wait>()
  for (const { unit, effect, resumed } of steps) {
    numbers.set(unit, (numbers.get(unit) ?? 0) + 1)
    const named = (one: string): string => `${one} ${numbers.get(one)}`
    const answers = [{ unit, effect }, ...resumed]
    const victim = answers.find(
      (one) => one.effect.kind === 'done' && one.effect.result.error?.code === '40P01',
    )
    if (victim) {
      const name = named(victim.unit)
      const last = waits.get(victim.unit)?.text ?? `${name} closed the circle`
      return { unit: victim.unit, name, cycle: [...waitersOf(victim.unit, waits), last] }
    }
    for (const one of answers) {
      waits.delete(one.unit)
      if (one.effect.kind !== 'waits') continue
      const what = one.effect.what ? ` (${one.effect.what})` : ''
      const text = `${named(one.unit)} waited for ${one.effect.for.join(' and ')}${what}`
      waits.set(one.unit, { for: one.effect.for, text })
    }
  }
  return undefined
}

/** Describes the units that wait for a unit, directly or through other waiting units. */
function waitersOf(unit: string, waits: ReadonlyMap<string, Wait>): string[] {
  const found = new Set([unit])
  for (const one of found) for (const [waiter, wait] of waits) if (wait.for.includes(one)) found.add(waiter)
  return [...found].flatMap((one) => (one === unit ? [] : (waits.get(one)?.text ?? [])))
}

/** True if the actor did not handle the deadlock, so that the deadlock is the failure. */
function hasFailedBy({ outcomes }: Trace, { unit }: Victim): boolean {
  const outcome = outcomes[actorOf(unit)]
  let reason: unknown = outcome?.status === 'rejected' ? outcome.reason : undefined
  for (let depth = 0; depth < 5 && reason instanceof Error; depth++) {
    if ((reason as { code?: unknown }).code === '40P01') return true
    reason = reason.cause
  }
  return false
}

const deadlock = ({ name, cycle }: Victim): Anomaly => ({
  name: 'deadlock',
  explanation: `Deadlock: ${cycle.join(', ')}, and the server ended ${name} with 40P01.`,
})
