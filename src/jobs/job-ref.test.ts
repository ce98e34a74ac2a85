import { describe, expect, it } from 'vitest'
import { until } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { InvalidInputError, PermanentError } from '../errors.js'
import { job } from './job-definition.js'
import type { JobRef } from './job-ref.js'

const fixture = openJobs()
const define = () =>
  fixture.dibs.jobs({
    email: job<{ to: string }, { messageId: string }>(),
    fax: job<number, string>({ queue: 'paper' }),
    bad: job<null>(),
  })
const handlers = {
  email: ({ to }: { to: string }) => ({ messageId: `<${to}>` }),
  fax: (page: number) => `page ${page}`,
  bad: () => {
    throw new PermanentError('no')
  },
}

describe('a reference to a job', () => {
  it('is what add and addMany return, in the order of the jobs', async () => {
    const jobs = define()
    const id = expect.stringMatching(/^\d+$/)
    expect(await jobs.add('fax', 1)).toEqual({ id, name: 'fax', created: true })
    expect(
      await jobs.addMany([
        { name: 'email', input: { to: 'ann' } },
        { name: 'fax', input: 2 },
      ]),
    ).toEqual([
      { id, name: 'email', created: true },
      { id, name: 'fax', created: true },
    ])
    await fixture.dibs.transaction(async (tx) => {
      expect(await jobs.add('fax', 3, { tx })).toEqual({ id, name: 'fax', created: true })
    })
  })

  it('stands for the id in every call', async () => {
    const jobs = define()
    const ref = await jobs.add('email', { to: 'ann' })
    const canceled = await jobs.add('fax', 1, { delayMs: 60_000 })
    expect(await jobs.cancel(canceled)).toEqual({ state: 'canceled' })
    const dead = await jobs.addMany([1, 2, 3].map(() => ({ name: 'bad', input: null })))
    await using worker = await jobs.work(handlers)
    await until(() => worker.stats.failed === 3, 'all to be dead')
    expect(await jobs.result(ref, { waitMs: 10_000 })).toEqual({ messageId: '<ann>' })
    expect(await jobs.get(ref)).toMatchObject({ id: ref.id, state: 'succeeded' })
    expect((await jobs.history(ref)).items).toMatchObject([{ outcome: 'succeeded' }])
    await worker.stop()
    const [first, ...others] = dead
    if (!first) expect.unreachable()
    expect(await jobs.redrive(first)).toEqual({ ids: [first.id] })
    expect(await jobs.discard(others)).toEqual({ ids: others.map(({ id }) => id) })
    expect(await jobs.discard([first, `${others[0]?.id}`])).toEqual({ ids: [] })
  })

  it('survives JSON, and another process', async () => {
    const ref = await define().add('email', { to: 'ann' })
    const stored: JobRef<'email', { messageId: string }> = JSON.parse(JSON.stringify(ref))
    expect(stored).toEqual(ref)
    const elsewhere = (await fixture.elsewhere()).jobs({
      email: job<{ to: string }, { messageId: string }>(),
    })
    await using _ = await elsewhere.work({ email: handlers.email })
    expect((await elsewhere.result(stored, { waitMs: 10_000 })).messageId).toBe('<ann>')
  })

  it('is refused if its job has another name, and nothing is changed', async () => {
    const jobs = define()
    const email = await jobs.add('email', { to: 'ann' })
    const fax: JobRef<'fax', string> = { id: email.id, name: 'fax', created: true }
    const calls: Record<string, () => Promise<unknown>> = {
      result: () => jobs.result(fax),
      get: () => jobs.get(fax),
      cancel: () => jobs.cancel(fax),
      history: () => jobs.history(fax),
      redrive: () => jobs.redrive(fax),
      discard: () => jobs.discard(['999999', fax]),
    }
    for (const [name, call] of Object.entries(calls)) {
      const error: Error = await call().then(
        () => expect.unreachable(name),
        (error) => error,
      )
      expect(error, name).toBeInstanceOf(InvalidInputError)
      expect(error.message).toBe(
        `\`name\` of the reference is "fax", but job ${email.id} is "email". Pass the reference that \`add\` returned for this job.`,
      )
      expect(error).toMatchObject({ field: 'name', status: 400 })
    }
    expect((await jobs.get(email))?.state).toBe('ready')
    // A job that has ended as well.
    await jobs.cancel(email)
    for (const call of Object.values(calls)) await expect(call()).rejects.toThrow(InvalidInputError)
  })

  it('is refused where its name is not defined', async () => {
    const ref = await define().add('email', { to: 'ann' })
    const others = fixture.dibs.jobs({ fax: {}, call: {} })
    await expect(others.get(ref as never)).rejects.toThrow(
      '`name` must be the name of a job that is defined here (fax, call), not "email".',
    )
    expect((await others.get(ref.id))?.name).toBe('email')
  })

  it.each([
    [{ id: 7, name: 'fax' }, /`id` must be the id of a job, or the reference that `add` returned, not 7/],
    [{ id: 'x', name: 'fax' }, /`id` must be/],
    [{ id: '1' }, /`name` must be the name of a job that is defined here \(email, fax, bad\), not undefined/],
    [{ name: 'fax' }, /`id` must be/],
    [{}, /`id` must be .* not a plain object/],
    [null, /`id` must be .* not null/],
    [undefined, /`id` must be .* not undefined/],
  ])('is refused if it is %j', async (ref, said) => {
    const jobs = define()
    await expect(jobs.get(ref as never)).rejects.toThrow(said)
    await expect(jobs.redrive([ref] as never)).rejects.toThrow(said)
  })
})
