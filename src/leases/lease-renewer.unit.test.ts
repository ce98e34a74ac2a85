import { describe, expect, it } from 'vitest'
import { deferred } from '../../test/deferred.js'
import { until } from '../../test/until.js'
import type { LossReason } from '../errors.js'
import { Lease } from './lease.js'
import { LeaseRenewer, type LeaseRenewerOptions, type RenewalState } from './lease-renewer.js'

const HOUR_MS = 3_600_000

class NamedLease extends Lease {
  unanswered = 0

  constructor(
    readonly name: string,
    leaseMs = HOUR_MS,
  ) {
    super({ leaseMs, sentAt: performance.now() })
  }

  override retryLater(): void {
    this.unanswered++
    super.retryLater()
  }

  protected override onLost(reason: LossReason): Error {
    return new Error(reason)
  }
}

/** A renewer whose statements the test answers. */
function renewing(options: Partial<LeaseRenewerOptions<NamedLease>> = {}) {
  const statements: { names: string[]; answer: (...states: RenewalState[]) => void }[] = []
  const renewer = new LeaseRenewer<NamedLease>({
    renew: (renewals) => {
      const { promise, resolve } = deferred<readonly RenewalState[]>()
      const names = renewals.map(({ lease }) => lease.name)
      statements.push({ names, answer: (...states) => resolve(states) })
      return promise
    },
    ...{ maxBatch: 2, maxInFlight: 2, keepsProcessAlive: false },
    ...options,
  })
  const add = (...leases: NamedLease[]): void => {
    for (const lease of leases) {
      lease.renewAt = performance.now()
      renewer.add(lease)
    }
  }
  const statement = (n: number) => until(() => statements[n], `statement ${n}`)
  return { renewer, statements, statement, add }
}

describe('a lease renewer', () => {
  it('renews all leases that are due with one statement, and not before a third of their time', async () => {
    const { renewer, statement, statements, add } = renewing()
    const [one, other] = [new NamedLease('one'), new NamedLease('other')]
    renewer.add(new NamedLease('later'))
    add(one, other)
    const first = await statement(0)
    expect(first.names).toEqual(['one', 'other'])
    const { endsAt } = one
    first.answer('held', undefined)
    await until(() => other.unanswered === 1, 'the answer to be read')
    expect(one.endsAt).toBeGreaterThan(endsAt)
    expect(statements).toHaveLength(1)
    for (const lease of renewer.leases) lease.stopRenewal()
  })

  it('does not let a lease wait for the answer about another', async () => {
    const { renewer, statement, add } = renewing()
    const [silent, next] = [new NamedLease('silent'), new NamedLease('next')]
    add(silent)
    await statement(0)
    add(next)
    const second = await statement(1)
    expect(second.names).toEqual(['next'])
    second.answer('lost')
    await until(() => next.leaseState === 'lost', 'the answer to be read')
    expect([silent.leaseState, silent.unanswered]).toEqual(['held', 0])
    for (const lease of renewer.leases) lease.stopRenewal()
  })

  it('does not put a short lease and one that is far longer into one statement', async () => {
    const { renewer, statement, add } = renewing()
    add(new NamedLease('long'), new NamedLease('short', HOUR_MS / 10))
    expect([(await statement(0)).names, (await statement(1)).names]).toEqual([['short'], ['long']])
    for (const lease of renewer.leases) lease.stopRenewal()
  })

  it('starts a statement when another has ended, if no more may be in flight', async () => {
    const { renewer, statement, statements, add } = renewing({ maxBatch: 1, maxInFlight: 1 })
    add(new NamedLease('first'), new NamedLease('second'))
    const first = await statement(0)
    expect(statements).toHaveLength(1)
    first.answer('held')
    expect((await statement(1)).names).toEqual(['second'])
    for (const lease of renewer.leases) lease.stopRenewal()
  })

  it('renews all leases again, if that was asked for while a statement was in flight', async () => {
    const { renewer, statement, add } = renewing()
    add(new NamedLease('one'))
    const first = await statement(0)
    renewer.renewNow()
    first.answer('held')
    expect((await statement(1)).names).toEqual(['one'])
    for (const lease of renewer.leases) lease.stopRenewal()
  })

  it('counts a refusal as a loss, but not while the holder ends the lease', async () => {
    const { renewer, statement, add } = renewing()
    const [lost, ending] = [new NamedLease('lost'), new NamedLease('ending')]
    Object.defineProperty(ending, 'isBeingEnded', { value: true })
    add(lost, ending)
    const { answer } = await statement(0)
    answer('lost', 'lost')
    await until(() => lost.leaseState === 'lost', 'the answer to be read')
    expect([ending.leaseState, ending.unanswered]).toEqual(['held', 1])
    for (const lease of renewer.leases) lease.stopRenewal()
  })

  it('waits for a locked row with a statement of its own', async () => {
    const { renewer, statement, add } = renewing({ renewLocked: async () => 'lost' })
    const lease = new NamedLease('locked')
    add(lease)
    const { answer } = await statement(0)
    answer('locked')
    await until(() => lease.leaseState === 'lost', 'the answer to the statement of its own')
    expect(renewer.leases).toEqual([])
  })

  it('judges the deadline of a lease that another thread renews, and does not renew it', async () => {
    const lost: string[] = []
    const { renewer, statements } = renewing({
      onLost: ({ name }, reason) => lost.push(`${name}: ${reason}`),
    })
    const watched = new NamedLease('watched', 100)
    renewer.watch(watched)
    await until(() => watched.leaseState === 'lost', 'its deadline')
    expect(lost).toEqual(['watched: expired'])
    expect(statements).toEqual([])
    expect(renewer.leases).toEqual([])
  })

  it('does not renew a lease that has ended by its own clock', async () => {
    const lease = new NamedLease('ended', 1)
    await until(() => performance.now() > lease.endsAt, 'its end')
    expect(lease.beginRenewal(performance.now())).toBe(0)
    expect(new NamedLease('held').beginRenewal(performance.now())).toBe(HOUR_MS)
  })

  it('waits for the last statement that may be in flight no longer than the shortest lease allows', async () => {
    const patience: number[] = []
    const { renewer, add } = renewing({
      maxInFlight: 1,
      renew: async (renewals, patienceMs) => {
        patience.push(patienceMs)
        return renewals.map(() => 'held')
      },
    })
    renewer.add(new NamedLease('short', 2_000))
    add(new NamedLease('long'))
    await until(() => patience.length > 0, 'the statement')
    expect(patience).toEqual([500])
    for (const lease of renewer.leases) lease.stopRenewal()
  })

  it('renews a lease that another thread has renewed, and leaves it to that thread again', async () => {
    let users = 0
    const connection = { retain: () => void users++, release: () => void users-- }
    const { renewer, statement, statements, add } = renewing({ connection })
    const lease = new NamedLease('moved')
    renewer.watch(lease)
    add(lease)
    const { answer } = await statement(0)
    renewer.watch(lease)
    answer('held')
    lease.renewAt = performance.now()
    renewer.renewNow()
    await new Promise((resolve) => setTimeout(resolve, 50))
    expect([statements.length, renewer.leases, users]).toEqual([1, [lease], 1])
    lease.stopRenewal()
    expect([renewer.leases, users]).toEqual([[], 0])
  })

  it('retains its connection while there is a lease', () => {
    let users = 0
    const connection = { retain: () => void users++, release: () => void users-- }
    const { renewer } = renewing({ connection })
    const leases = [new NamedLease('one'), new NamedLease('other')]
    for (const lease of leases) renewer.add(lease)
    expect(users).toBe(1)
    for (const lease of leases) lease.stopRenewal()
    expect(users).toBe(0)
  })
})
