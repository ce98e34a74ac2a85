import { actorOf, type Trace } from '../schedule/trace.js'
import type { History } from './accesses.js'
import type { Anomaly } from './anomaly-name.js'
import { duplicateClaim } from './duplicate-claim.js'
import { lockRelease } from './lock-release.js'
import { lostUpdate } from './lost-update.js'
import { phantom, readSkew, writeSkew } from './skews.js'

/**
 * The more special come first: a duplicate claim is a lost update or a phantom as well, a phantom is a write skew whose row
 * was not there before, and whoever loses an update behind a lock that was released too soon must mend the lock. A read
 * skew comes last, since most that write by what they have read have also read at two times.
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
 * The name of a schedule that went wrong, where the trace alone shows that it is true. Undefined: none of these, or it cannot be
 * told. What went wrong may still be something else that the same schedule shows.
 */
export function anomalyOf(trace: Trace, history: History | undefined): Anomaly | undefined {
  const victim = victimOf(trace)
  if (victim && hasFailedBy(trace, victim)) return deadlock(victim)
  for (const find of history ? FINDERS : []) {
    const found = find(history as History)
    if (found) return found
  }
  return victim && deadlock(victim)
}

/** Whose statement the server ended because of a circle of waits. */
interface Victim {
  readonly unit: string
  /** The step that it waited in. */
  readonly name: string
  /** Who waited for whom: it, and those behind it. */
  readonly circle: readonly string[]
}

interface Wait {
  readonly for: readonly string[]
  readonly told: string
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
      const last = waits.get(victim.unit)?.told ?? `${name} closed the circle`
      return { unit: victim.unit, name, circle: [...behind(victim.unit, waits), last] }
    }
    for (const one of answers) {
      waits.delete(one.unit)
      if (one.effect.kind !== 'waits') continue
      const what = one.effect.what ? ` (${one.effect.what})` : ''
      const told = `${named(one.unit)} waited for ${one.effect.for.join(' and ')}${what}`
      waits.set(one.unit, { for: one.effect.for, told })
    }
  }
  return undefined
}

function behind(unit: string, waits: ReadonlyMap<string, Wait>): string[] {
  const found = new Set([unit])
  for (const one of found) for (const [waiter, wait] of waits) if (wait.for.includes(one)) found.add(waiter)
  return [...found].flatMap((one) => (one === unit ? [] : (waits.get(one)?.told ?? [])))
}

/** The actor did not handle it, so that it is what went wrong. */
function hasFailedBy({ outcomes }: Trace, { unit }: Victim): boolean {
  const outcome = outcomes[actorOf(unit)]
  let reason: unknown = outcome?.status === 'rejected' ? outcome.reason : undefined
  for (let depth = 0; depth < 5 && reason instanceof Error; depth++) {
    if ((reason as { code?: unknown }).code === '40P01') return true
    reason = reason.cause
  }
  return false
}

const deadlock = ({ name, circle }: Victim): Anomaly => ({
  name: 'deadlock',
  explanation: `Deadlock: ${circle.join(', ')}, and the server ended ${name} with 40P01.`,
})
