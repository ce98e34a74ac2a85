import { describe, expect, it } from 'vitest'
import { until, viaPgBouncer } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import {
  BusinessRuleError,
  BusyError,
  CommitOutcomeUnknownError,
  InvalidInputError,
  JobCanceledError,
  JobExpiredError,
  JobTimeoutError,
  NotFoundError,
  PermanentError,
  SnoozeError,
  TransientError,
} from '../errors.js'
import { encodeCursor } from '../postgres/page.js'
import type { JobContext } from './job-context.js'

const fixture = openJobs()
const retry = () => 0
const HOUR_MS = 3_600_000

/** Each question to it throws. */
function revoked(): object {
  const { proxy, revoke } = Proxy.revocable({}, {})
  revoke()
  return proxy
}

const failureOf = (call: Promise<unknown>): Promise<Error> =>
  call.then(
    () => expect.unreachable('it did not fail'),
    (error) => error,
  )

const outcomesOf = async (id: string): Promise<string[]> =>
  (await fixture.dibs.jobs({ any: {} }).history(id)).items.map(({ outcome }) => outcome)

describe('a handler that throws', () => {
  it.each<[string, unknown, string, number]>([
    ['an error', new Error('out of paper'), 'scheduled', 1],
    ['something transient', new TransientError('the bank is down'), 'scheduled', 1],
    ['no error at all', 'just a text', 'scheduled', 1],
    ['nothing', undefined, 'scheduled', 1],
    ['what does not say what it is', revoked(), 'scheduled', 1],
    ['an answer that it has lost itself', new CommitOutcomeUnknownError('a transfer'), 'scheduled', 1],
    ['something permanent', new PermanentError('no such account'), 'dead', 1],
    ['a refusal', new BusinessRuleError('sold out', 'sold-out'), 'dead', 1],
    ['not yet', new SnoozeError(HOUR_MS), 'scheduled', 0],
    ['not for ages', new SnoozeError(1e300), 'scheduled', 0],
  ])('%s', async (_, error, state, attempt) => {
    const jobs = fixture.dibs.jobs({ pay: { retry: { baseMs: HOUR_MS } } })
    const { id } = await jobs.add('pay', null)
    const notRecorded = fixture.listen('dibs:job.not-recorded')
    await using worker = await jobs.work({
      pay: () => {
        throw error
      },
    })
    await until(async () => (await jobs.get(id))?.state === state, `the job to be ${state}`, 10_000)
    expect(await jobs.get(id)).toMatchObject({ attempt, error: { message: expect.any(String) } })
    expect([worker.stats.started, notRecorded]).toEqual([1, []])
    // A snoozed attempt leaves no outcome.
    expect(await outcomesOf(id)).toEqual(attempt === 0 ? [] : ['failed'])
  })

  it('a value that cannot be read, in a transaction: that is rolled back, and its connection released', async () => {
    const dibs = await fixture.elsewhere({}, { max: 1 })
    const jobs = dibs.jobs({ pay: { transactional: true, maxAttempts: 2, retry } })
    await using _ = await jobs.work({
      pay: async (_, { tx, attempt }) => {
        await tx.query(`insert into ${fixture.log} (name) values ('${attempt}')`)
        if (attempt === 1) throw revoked()
      },
    })
    const { id } = await jobs.add('pay', null)
    await jobs.result(id, { waitMs: 10_000 })
    expect(await outcomesOf(id)).toEqual(['failed', 'succeeded'])
    expect(await fixture.logged()).toEqual(['2'])
  })

  it('and is retried later: a caller whose wait ends hears why', async () => {
    const jobs = fixture.dibs.jobs({ pay: { retry: { baseMs: HOUR_MS } } })
    const { id } = await jobs.add('pay', null)
    await using _ = await jobs.work({
      pay: () => {
        throw new Error('out of paper')
      },
    })
    await until(async () => (await jobs.get(id))?.state === 'scheduled', 'it to fail', 10_000)
    await expect(jobs.result(id, { waitMs: 20 })).rejects.toThrow(
      `the end of job ${id} ("pay"), which is scheduled (attempt 1 has failed: out of paper)`,
    )
  })

  it('gets no more than `maxAttempts`', async () => {
    const jobs = fixture.dibs.jobs({ pay: { retry, maxAttempts: 3 } })
    const { id } = await jobs.add('pay', null)
    const seen: [number, boolean][] = []
    await using worker = await jobs.work({
      pay: (_, { attempt, isLastAttempt }) => {
        seen.push([attempt, isLastAttempt])
        throw Object.assign(new Error(`attempt ${attempt}`), { code: 'E_PAY', amount: 7 })
      },
    })
    const error = await failureOf(jobs.result(id, { waitMs: 15_000 }))
    expect(error).toBeInstanceOf(PermanentError)
    expect(error).toMatchObject({ message: 'attempt 3', amount: 7, cause: { code: 'E_PAY' } })
    expect(seen).toEqual([
      [1, false],
      [2, false],
      [3, true],
    ])
    expect(worker.stats).toMatchObject({ retried: 2, failed: 1 })
    const history = (await jobs.history(id)).items
    expect(history.map(({ attempt, outcome, error }) => [attempt, outcome, error?.message])).toEqual([
      [1, 'failed', 'attempt 1'],
      [2, 'failed', 'attempt 2'],
      [3, 'failed', 'attempt 3'],
    ])
    expect(new Set(history.map(({ fence }) => fence)).size).toBe(3)
  })

  it('waits as long as its policy or its error says, whichever is longer', async () => {
    const jobs = fixture.dibs.jobs({
      policy: { retry: { backoff: 'fixed', baseMs: 600_000, jitter: 0 } },
      error: { retry: { backoff: 'fixed', baseMs: 1_000, jitter: 0 } },
    })
    const ids = [(await jobs.add('policy', null)).id, (await jobs.add('error', null)).id]
    const fail = () => {
      throw new BusyError('the bank', 10, 300_000)
    }
    await using _ = await jobs.work({ policy: fail, error: fail })
    for (const [n, expected] of [600_000, 300_000].entries()) {
      const record = await until(async () => {
        const found = await jobs.get(`${ids[n]}`)
        return found?.state === 'scheduled' && found
      }, 'it to wait')
      const delayMs = (record.runAt?.getTime() as number) - Date.now()
      expect(Math.abs(delayMs - expected)).toBeLessThan(20_000)
    }
  })

  it('runs again when it is due', async () => {
    const jobs = fixture.dibs.jobs({ pay: { retry: { backoff: 'fixed', baseMs: 200, jitter: 0 } } })
    const { id } = await jobs.add('pay', null)
    const times: number[] = []
    await using _ = await jobs.work(
      {
        pay: (_, { attempt }) => {
          times.push(performance.now())
          if (attempt < 2) throw new Error('not yet')
          return 'paid'
        },
      },
      { pollMs: 60_000 },
    )
    expect(await jobs.result(id, { waitMs: 10_000 })).toBe('paid')
    expect((times[1] as number) - (times[0] as number)).toBeGreaterThan(195)
  })
})

describe('a handler that takes too long', () => {
  it('has failed, gets its signal, and frees its slot', async () => {
    const jobs = fixture.dibs.jobs({ slow: { timeoutMs: 200, maxAttempts: 1 }, next: {} })
    const { id } = await jobs.add('slow', null)
    const stuck = fixture.listen('dibs:job.stuck')
    const go = deferred()
    const signals: AbortSignal[] = []
    await using worker = await jobs.work(
      {
        slow: async (_, { signal }) => {
          signals.push(signal)
          await go.promise
        },
        next: () => 'next',
      },
      { concurrency: 1 },
    )
    await expect(jobs.result(id, { waitMs: 10_000 })).rejects.toThrow(/took longer than 200 ms/)
    expect(signals[0]?.reason).toBeInstanceOf(JobTimeoutError)
    const next = await jobs.add('next', null)
    expect(await jobs.result(next.id, { waitMs: 20_000 })).toBe('next')
    expect([stuck.length, worker.stats.stuck]).toEqual([1, 1])
    go.resolve()
    await until(() => worker.stats.stuck === 0, 'it to end after all')
    expect(worker.stats).toMatchObject({ failed: 1, succeeded: 1, lost: 0 })
  })
})

describe('a lease that is lost', () => {
  it('aborts the handler, and refuses its late outcome', async () => {
    const jobs = fixture.dibs.jobs({ slow: { leaseMs: 4_000 } })
    const { id } = await jobs.add('slow', null)
    const told = fixture.listen('dibs:job.lost', 'dibs:job.recovered', 'dibs:job.refused')
    const go = deferred()
    const contexts: JobContext[] = []
    await using worker = await jobs.work(
      {
        slow: async (_, ctx) => {
          contexts.push(ctx)
          if (ctx.attempt > 1) return 'second'
          await go.promise
          return 'first'
        },
      },
      { concurrency: 3 },
    )
    await until(() => contexts.length === 1, 'it to run')
    await fixture.endLeases()
    await fixture.query(`select {schema}.job_recover(10, '{}')`)
    expect(await jobs.result(id, { waitMs: 10_000 })).toBe('second')
    await until(() => contexts[0]?.signal.aborted, 'the first one to be told', 10_000)
    expect(contexts[0]?.signal.reason).toMatchObject({ code: 'DIBS_FENCE_LOST', reason: 'stolen' })
    go.resolve()
    await until(() => told.some(({ event }) => event === 'dibs:job.refused'), 'the refusal')
    expect(await jobs.result(id)).toBe('second')
    expect(await outcomesOf(id)).toEqual(['lost', 'succeeded'])
    expect(worker.stats).toMatchObject({ succeeded: 1, lost: 1 })
    const [lost] = (await jobs.history(id)).items
    expect(lost?.error?.message).toMatch(/^Attempt 1 of 10 has no recorded outcome/)
  })

  it('of the last attempt is the end of the job', async () => {
    const jobs = fixture.dibs.jobs({ killer: { maxAttempts: 1 } })
    const { id } = await jobs.add('killer', null)
    const go = deferred()
    await using worker = await jobs.work({ killer: () => go.promise })
    await until(() => worker.stats.running === 1, 'it to run')
    await fixture.endLeases()
    await until(async () => (await jobs.get(id))?.state === 'dead', 'its death')
    expect((await jobs.get(id))?.error).toMatchObject({ name: 'LeaseLostError' })
    go.resolve()
  })
})

describe('dead letters', () => {
  const define = () =>
    fixture.dibs.jobs({ email: { retry, maxAttempts: 1 }, fax: { queue: 'paper', maxAttempts: 1 } })
  const say = (text: string) => ({ name: 'email' as const, input: text })

  /** Dead jobs that say what they were given. */
  async function kill(texts: readonly string[], fax?: string): Promise<string[]> {
    const jobs = define()
    const added = await jobs.addMany([
      ...texts.map(say),
      ...(fax ? [{ name: 'fax' as const, input: fax }] : []),
    ])
    await using worker = await jobs.work({ email: fail, fax: fail })
    await until(() => worker.stats.failed === added.length, 'all to be dead')
    return added.map(({ id }) => id)
  }
  const fail = (input: unknown) => {
    throw new PermanentError(`${input}`)
  }

  it('are listed in pages, by name, and by error', async () => {
    const ids = await kill(['a', 'b', 'no "such" thing\nat all', 'd'], 'b')
    const jobs = define()
    const all = await jobs.dead()
    expect(all.items.map(({ id }) => id).sort()).toEqual([...ids].sort())
    expect(all.items[0]).toMatchObject({ state: 'dead', attempt: 1, error: { message: expect.any(String) } })
    expect(all.nextCursor).toBeUndefined()
    const first = await jobs.dead({ name: 'email' }, { limit: 3 })
    const second = await jobs.dead({ name: 'email' }, { limit: 3, cursor: first.nextCursor })
    expect([...first.items, ...second.items].map(({ id }) => id)).toEqual(ids.slice(0, 4))
    expect([first.nextCursor, second.nextCursor]).toEqual([expect.any(String), undefined])
    expect(await jobs.dead({ name: 'email' }, { limit: 4 })).toMatchObject({
      items: { length: 4 },
      nextCursor: undefined,
    })
    expect((await jobs.dead({ error: '"such" thing\nat' })).items.map(({ id }) => id)).toEqual([ids[2]])
    expect((await jobs.dead({ error: 'b', name: 'fax' })).items.map(({ id }) => id)).toEqual([ids[4]])
    await expect(jobs.dead({ name: 'emial' as never })).rejects.toThrow(InvalidInputError)
    await expect(jobs.dead({}, { limit: 1_001 })).rejects.toThrow(/from 1 to 1000/)
    await expect(jobs.dead({}, { cursor: 'x' })).rejects.toThrow(/`nextCursor` of the previous page/)
    await expect(jobs.dead({ limit: 3 } as never)).rejects.toThrow(/Unknown option "limit"/)
    await expect(jobs.dead({}, { after: 'x' } as never)).rejects.toThrow(/Unknown option "after"/)
    const tampered = encodeCursor('dead', ['9999999999', '9999999999999999'])
    expect((await jobs.dead({}, { cursor: tampered })).items).toEqual([])
  })

  it('do not include jobs of the same name in other queues', async () => {
    await kill(['a'])
    const others = fixture.dibs.jobs({ email: { queue: 'elsewhere' }, other: { queue: 'default' } })
    expect((await others.dead()).items).toEqual([])
    expect((await others.redrive({ all: true })).ids).toEqual([])
  })

  it('are redriven, one, several, or all that match, with all their attempts', async () => {
    const ids = await kill(['a', 'b', 'c', 'd'], 'e')
    const jobs = define()
    expect(await jobs.redrive(`${ids[0]}`)).toEqual({ ids: [ids[0]] })
    expect(await jobs.redrive(`${ids[0]}`)).toEqual({ ids: [] })
    expect(new Set((await jobs.redrive(ids.slice(0, 2))).ids)).toEqual(new Set([ids[1]]))
    expect(new Set((await jobs.redrive({ name: 'email', error: 'd' })).ids)).toEqual(new Set([ids[3]]))
    expect(await jobs.get(`${ids[3]}`)).toMatchObject({ state: 'ready', attempt: 0 })
    await using _ = await jobs.work({ email: (input) => input })
    expect(await jobs.result(`${ids[3]}`, { waitMs: 10_000 })).toBe('d')
    expect((await jobs.get(`${ids[2]}`))?.state).toBe('dead')
    expect((await jobs.redrive({ all: true })).ids.length).toBe(2)
    await expect(jobs.redrive('no id')).rejects.toThrow(/`id` must be the id of a job/)
    await expect(jobs.redrive({ nmae: 'email' } as never)).rejects.toThrow(/Unknown option "nmae"/)
  })

  it.each<[string, unknown, RegExp]>([
    [
      'nothing',
      undefined,
      /^`which` must be an id, a reference, an array of these, or a filter .*, not undefined\.$/,
    ],
    [
      'a number',
      7,
      /^`which` must be an id, a reference, an array of these, or a filter .*, not a number\.$/,
    ],
    ['null', null, /^`which` must be .*, not null\.$/],
    ['an empty filter', {}, /^`which` must name something \(`name`, `error`\), or say `\{ all: true \}`\.$/],
    ['a filter of undefined', { name: undefined }, /^`which` must name something/],
    ['not all', { all: false }, /^`which` must name something/],
    ['a text for all', { all: 'yes' }, /^`all` must be true or false, not "yes"\.$/],
  ])('are left alone where %s is given', async (_, which, said) => {
    const ids = await kill(['a'])
    const jobs = define()
    for (const call of [jobs.redrive(which as never), jobs.discard(which as never)]) {
      const error = await failureOf(call)
      expect(error).toBeInstanceOf(InvalidInputError)
      expect(error.message).toMatch(said)
    }
    expect((await jobs.dead()).items.map(({ id }) => id)).toEqual(ids)
  })

  it('are all discarded with `all`, or all of a name', async () => {
    const ids = await kill(['a', 'b'], 'c')
    const jobs = define()
    expect((await jobs.discard({ all: true, name: 'fax' })).ids).toEqual([ids[2]])
    expect(new Set((await jobs.discard({ all: true })).ids)).toEqual(new Set(ids.slice(0, 2)))
    expect((await jobs.dead()).items).toEqual([])
  })

  it('are discarded, and their attempts are kept', async () => {
    const ids = await kill(['a', 'b', 'c'])
    const jobs = define()
    expect(await jobs.discard([`${ids[0]}`, '999999'])).toEqual({ ids: [ids[0]] })
    expect(new Set((await jobs.discard({ error: 'c' })).ids)).toEqual(new Set([ids[2]]))
    expect((await jobs.dead()).items.map(({ id }) => id)).toEqual([ids[1]])
    expect(await jobs.get(`${ids[0]}`)).toMatchObject({ state: 'failed', error: { message: 'a' } })
    await expect(jobs.result(`${ids[0]}`)).rejects.toThrow('a')
    expect(await outcomesOf(`${ids[0]}`)).toEqual(['failed'])
  })
})

describe('cancel', () => {
  it('ends a waiting job at once, and says why', async () => {
    const jobs = fixture.dibs.jobs({ pay: {} })
    const ready = await jobs.add('pay', 7)
    const later = await jobs.add('pay', 8, { delayMs: HOUR_MS })
    for (const { id } of [ready, later]) {
      expect(await jobs.cancel(id, { reason: 'the order was withdrawn' })).toEqual({ state: 'canceled' })
      const error = await failureOf(jobs.result(id))
      expect(error).toBeInstanceOf(JobCanceledError)
      expect(error.message).toBe(`The job ${id} ("pay") was canceled: the order was withdrawn.`)
      expect(await jobs.cancel(id)).toEqual({ state: 'ended' })
    }
    expect(await jobs.get(later.id)).toMatchObject({ state: 'canceled', input: 8, attempt: 0, fence: 0 })
    expect(await outcomesOf(ready.id)).toEqual(['canceled'])
    expect(await jobs.cancel('999999999')).toEqual({ state: 'ended' })
    await expect(jobs.cancel(ready.id, { reason: 'x'.repeat(100_000) })).rejects.toThrow(InvalidInputError)
  })

  it('has no reason if none was given, even after a failed attempt', async () => {
    const jobs = fixture.dibs.jobs({ pay: { retry: () => HOUR_MS } })
    const waits = (await jobs.add('pay', 'fails')).id
    const runs = (await jobs.add('pay', 'runs')).id
    const inside = deferred<AbortSignal>()
    await using _ = await jobs.work({
      pay: async (input, { signal }) => {
        if (input === 'fails') throw new Error('the bank is down')
        inside.resolve(signal)
        await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
      },
    })
    const signal = await inside.promise
    await until(async () => (await jobs.get(waits))?.state === 'scheduled', 'it to have failed')
    for (const id of [waits, runs]) {
      await jobs.cancel(id)
      const error = await failureOf(jobs.result(id, { waitMs: 15_000 }))
      expect(error).toBeInstanceOf(JobCanceledError)
      expect(error.message).toBe(`The job ${id} ("pay") was canceled.`)
      expect((error as JobCanceledError).reason).toBeUndefined()
    }
    expect(signal.reason.message).toBe(`The job ${runs} ("pay") was canceled.`)
    // The end of the one that waited is an entry by itself, without a start.
    expect(
      (await jobs.history(waits)).items.map((one) => [one.attempt, one.outcome, !!one.startedAt]),
    ).toEqual([
      [1, 'failed', true],
      [1, 'canceled', false],
    ])
  })

  it('aborts the handler in any process, and the error of the handler does not hide the reason', async () => {
    const jobs = fixture.dibs.jobs({ pay: { leaseMs: viaPgBouncer ? 4_000 : 60_000, maxAttempts: 1 } })
    const other = (await fixture.elsewhere()).jobs({ pay: {} })
    const { id } = await jobs.add('pay', null)
    const inside = deferred<AbortSignal>()
    await using worker = await jobs.work({
      pay: async (_, { signal }) => {
        inside.resolve(signal)
        await new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
      },
    })
    const signal = await inside.promise
    // Cut within a character, as a text of bounded length may be.
    expect(await other.cancel(id, { reason: 'changed my mind \ud83d' })).toEqual({ state: 'canceling' })
    const since = performance.now()
    const error = await failureOf(other.result(id, { waitMs: 10_000 }))
    expect(performance.now() - since).toBeLessThan(4_000)
    expect(error.message).toBe(`The job ${id} ("pay") was canceled: changed my mind \ufffd.`)
    expect(signal.reason).toBeInstanceOf(JobCanceledError)
    expect(await outcomesOf(id)).toEqual(['canceled'])
    await until(() => worker.stats.canceled === 1, 'the worker to count it')
  })

  it('does not stop a handler that succeeds all the same', async () => {
    const jobs = fixture.dibs.jobs({ pay: {} })
    const { id } = await jobs.add('pay', null)
    const inside = deferred()
    const go = deferred()
    await using _ = await jobs.work({
      pay: async () => {
        inside.resolve()
        await go.promise
        return 'paid'
      },
    })
    await inside.promise
    expect(await jobs.cancel(id)).toEqual({ state: 'canceling' })
    expect(await jobs.get(id)).toMatchObject({ state: 'running', isCanceling: true })
    go.resolve()
    expect(await jobs.result(id, { waitMs: 10_000 })).toBe('paid')
    expect(await jobs.get(id)).toMatchObject({ state: 'succeeded', error: undefined })
  })

  it('ends the job of a handler that ignores its signal, and refuses its late outcome', async () => {
    const jobs = fixture.dibs.jobs({ pay: {}, next: {} })
    const { id } = await jobs.add('pay', null)
    const refused = fixture.listen('dibs:job.refused')
    const canceled = fixture.listen('dibs:job.canceled')
    const inside = deferred()
    const go = deferred()
    await using worker = await jobs.work(
      {
        pay: async () => {
          inside.resolve()
          await go.promise
          return 'paid'
        },
        next: () => 'next',
      },
      { concurrency: 1 },
    )
    await inside.promise
    await jobs.cancel(id, { reason: 'enough' })
    await expect(jobs.result(id, { waitMs: 10_000 })).rejects.toThrow(/was canceled: enough/)
    expect(await jobs.result((await jobs.add('next', null)).id, { waitMs: 10_000 })).toBe('next')
    go.resolve()
    await until(() => refused.length === 1, 'its late end to be refused')
    await expect(jobs.result(id)).rejects.toThrow(JobCanceledError)
    expect(worker.stats).toMatchObject({ canceled: 1, succeeded: 1, stuck: 0 })
    expect(canceled).toEqual([expect.objectContaining({ id, attempt: 1 })])
  })

  it('rolls back the writes of a transactional handler', async () => {
    const jobs = fixture.dibs.jobs({ book: { transactional: true } })
    const { id } = await jobs.add('book', null)
    const inside = deferred()
    await using _ = await jobs.work({
      book: async (_, { tx }) => {
        await tx.query(`insert into ${fixture.log} (name) values ('booked')`)
        inside.resolve()
        await new Promise(() => {})
      },
    })
    await inside.promise
    await jobs.cancel(id, { reason: 'enough' })
    await expect(jobs.result(id, { waitMs: 15_000 })).rejects.toThrow(/was canceled: enough/)
    expect(await fixture.logged()).toEqual([])
  })

  it('ends a job whose handler fails, whatever its retry policy says', async () => {
    const jobs = fixture.dibs.jobs({ pay: { retry } })
    const { id } = await jobs.add('pay', null)
    const canceled = fixture.listen('dibs:job.canceled')
    const inside = deferred()
    const go = deferred()
    await using worker = await jobs.work({
      pay: async () => {
        inside.resolve()
        await go.promise
        throw new SnoozeError(10)
      },
    })
    await inside.promise
    // Like a process that sends no notifications: the worker does not know of it when its handler ends.
    await fixture.query(`update {schema}.job set cancel_at = {schema}.clock(), error = $2 where id = $1`, [
      id,
      { name: 'JobCanceledError', message: 'enough' },
    ])
    go.resolve()
    await expect(jobs.result(id, { waitMs: 10_000 })).rejects.toThrow(/was canceled: enough/)
    await until(() => worker.stats.canceled === 1, 'the worker to count it')
    expect(worker.stats.snoozed).toBe(0)
    expect(canceled).toEqual([expect.objectContaining({ id, name: 'pay', attempt: 1 })])
  })

  it('ends a job that is released by `stop`', async () => {
    const jobs = fixture.dibs.jobs({ pay: {} })
    const { id } = await jobs.add('pay', null)
    const inside = deferred()
    await using worker = await jobs.work({
      pay: async () => {
        inside.resolve()
        await new Promise(() => {})
      },
    })
    await inside.promise
    await fixture.query(`update {schema}.job set cancel_at = {schema}.clock(), error = $2 where id = $1`, [
      id,
      { name: 'JobCanceledError', message: 'enough' },
    ])
    await worker.stop({ drainMs: 0 })
    expect(worker.stats).toMatchObject({ canceled: 1, released: 0 })
    await expect(jobs.result(id)).rejects.toThrow(/was canceled: enough/)
  })

  it('leaves dead ones alone', async () => {
    const jobs = fixture.dibs.jobs({ pay: { maxAttempts: 1 } })
    const { id } = await jobs.add('pay', null)
    await using _ = await jobs.work({
      pay: () => {
        throw new Error('no')
      },
    })
    await jobs.result(id, { waitMs: 10_000 }).catch(() => {})
    expect(await jobs.cancel(id)).toEqual({ state: 'dead' })
  })
})

describe('a job that expires', () => {
  it('is not run, and does not block later jobs', async () => {
    const jobs = fixture.dibs.jobs({ pay: {} })
    const expiresAt = new Date(Date.now() - 1_000)
    const old = await jobs.addMany(
      Array.from({ length: 40 }, () => ({ name: 'pay' as const, input: 'old', expiresAt })),
    )
    const { id } = await jobs.add('pay', 'new')
    const seen: unknown[] = []
    await using _ = await jobs.work(
      { pay: (input) => void seen.push(input) },
      { concurrency: 1, pollMs: 60_000 },
    )
    await jobs.result(id, { waitMs: 10_000 })
    expect(seen).toEqual(['new'])
    for (const { id } of old)
      await expect(jobs.result(id, { waitMs: 5_000 })).rejects.toThrow(JobExpiredError)
    expect(await jobs.get(`${old[0]?.id}`)).toMatchObject({ state: 'expired', input: 'old' })
  })

  it('ends even if no worker takes it', async () => {
    const jobs = fixture.dibs.jobs({ pay: {}, other: {} })
    const { id } = await jobs.add('pay', null, { expiresAt: new Date(Date.now() - 1_000) })
    const later = await jobs.add('pay', null, { delayMs: HOUR_MS, expiresAt: new Date(Date.now() - 1_000) })
    await using _ = await jobs.work({ other: () => {} })
    for (const one of [id, later.id])
      await until(async () => (await jobs.get(one))?.state === 'expired', 'it to expire', 5_000)
  })

  it.each<[number, string]>([
    [0, 'before anybody began it'],
    [1, 'after 1 attempt, which failed: attempt 1'],
    [2, 'after 2 attempts, the last of which failed: attempt 2'],
  ])('says so after %i attempts', async (attempts, said) => {
    const jobs = fixture.dibs.jobs({
      pay: { retry: (attempt) => (attempt < attempts ? 0 : HOUR_MS) },
      other: {},
    })
    const { id } = await jobs.add('pay', null, { expiresAt: new Date(Date.now() + HOUR_MS) })
    const handlers = {
      pay: (_: unknown, { attempt }: JobContext) => {
        throw new Error(`attempt ${attempt}.`)
      },
      other: () => {},
    }
    await using _ = await jobs.work(attempts === 0 ? { other: handlers.other } : handlers)
    await until(
      async () => (await jobs.get(id))?.state === (attempts === 0 ? 'ready' : 'scheduled'),
      'it to wait',
    )
    await fixture.query(`update {schema}.job set expires_at = {schema}.clock() where id = $1`, [id])
    const error = await failureOf(jobs.result(id, { waitMs: 15_000 }))
    expect(error).toBeInstanceOf(JobExpiredError)
    expect(error.message).toBe(`The job ${id} ("pay") has expired ${said}.`)
    expect(error).toMatchObject({ attempts })
  })
})

describe('a result', () => {
  it('is awaited even while the pool is full', async () => {
    const other = await fixture.elsewhere({}, { max: 1 })
    const jobs = other.jobs({ pay: {} })
    const { id } = await fixture.dibs.jobs({ pay: {} }).add('pay', null)
    await using _ = await fixture.dibs.jobs({ pay: {} }).work({ pay: () => 'paid' })
    const inside = deferred()
    const go = deferred()
    const holds = other.transaction(async () => {
      inside.resolve()
      await go.promise
    })
    await inside.promise
    const result = jobs.result(id, { waitMs: 30_000 })
    const since = performance.now()
    setTimeout(() => go.resolve(), 6_500)
    expect(await result).toBe('paid')
    // Longer than a call waits for a connection.
    expect(performance.now() - since).toBeGreaterThan(6_000)
    await holds
  })

  it('of a failed job names the class and the code of the error', async () => {
    const jobs = fixture.dibs.jobs({ pay: { maxAttempts: 1 } })
    const errors = [
      new TransientError('later'),
      new PermanentError('never'),
      new BusinessRuleError('sold out', 'sold-out'),
      Object.assign(new TypeError('odd'), { code: 'E_ODD' }),
    ]
    const added = await jobs.addMany(errors.map((_, n) => ({ name: 'pay', input: n })))
    await using _ = await jobs.work({
      pay: (n) => {
        throw errors[n as number]
      },
    })
    const told = await Promise.all(added.map(({ id }) => failureOf(jobs.result(id, { waitMs: 10_000 }))))
    expect(told.map(({ name, cause }) => [name, cause])).toEqual([
      ['PermanentError', { name: 'TransientError', message: 'later', code: 'DIBS_TRANSIENT' }],
      ['PermanentError', undefined],
      ['BusinessRuleError', undefined],
      ['PermanentError', { name: 'TypeError', message: 'odd', code: 'E_ODD' }],
    ])
  })

  it('that does not come says why', async () => {
    const jobs = fixture.dibs.jobs({ unknown: { queue: 'why' }, known: { queue: 'why' } })
    const { id } = await jobs.add('unknown', null)
    const say = async (of: string) => (await failureOf(jobs.result(of, { waitMs: 20 }))).message
    expect(await say(id)).toContain('which is ready (no worker that is alive takes it). Try')
    await using worker = await jobs.work({ known: () => {} })
    await worker.ready
    expect(await say(id)).toContain('(no worker that is alive takes it)')
    await fixture.dibs.queues.pause('why')
    const known = await jobs.add('known', null)
    expect(await say(known.id)).toContain('which is ready (its queue is paused). Try')
    // Without a wait, the call reads once.
    expect((await failureOf(jobs.result(known.id))).message).toContain('which is ready. ')
  })

  it('is awaited for `waitMs`, and says what is wrong', async () => {
    const jobs = fixture.dibs.jobs({ pay: {} })
    const { id } = await jobs.add('pay', null)
    const error = await failureOf(jobs.result(id, { waitMs: 30 }))
    expect(error).toBeInstanceOf(BusyError)
    expect(error.message).toContain(`the end of job ${id} ("pay"), which is ready`)
    const missing = await failureOf(jobs.result('99999999'))
    expect(missing).toBeInstanceOf(NotFoundError)
    expect(missing.message).toBe('There is no job 99999999, or it is not kept any more.')
    await expect(jobs.result('seven')).rejects.toThrow(
      /must be the id of a job, or the reference that `add` returned, not "seven"/,
    )
    await expect(jobs.result('seven')).rejects.toMatchObject({ status: 400 })
    await expect(jobs.result(7 as never)).rejects.toThrow(
      /must be the id of a job, or the reference that .add. returned, not \d/,
    )
    await expect(jobs.result(id, { waitMs: -1 })).rejects.toThrow(/`waitMs`/)
    expect(await jobs.get('99999999')).toBeUndefined()
    expect((await jobs.history(id)).items).toEqual([])
  })

  it('is not kept with `keepMs: 0`', async () => {
    const jobs = fixture.dibs.jobs({ pay: { keepMs: 0 } })
    const { id } = await jobs.add('pay', null)
    await using worker = await jobs.work({ pay: () => 'paid' })
    await until(() => worker.stats.succeeded === 1, 'it to be done')
    expect(await jobs.get(id)).toBeUndefined()
  })
})
