import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { expect, it, onTestFinished, vi } from 'vitest'
import { directUrl, until } from '../../test/database.js'
import { openJobs } from '../../test/jobs/open-jobs.js'
import { PermanentError, SnoozeError } from '../errors.js'
import type { OpenOptions } from '../postgres/open-options.js'

const fixture = openJobs()

/** Returns the lines that an instance writes to stderr about one job that fails twice and is dead. */
async function linesOfFailure(options: OpenOptions, error: () => Error) {
  const spy = vi.spyOn(console, 'error').mockImplementation(() => {})
  onTestFinished(() => spy.mockRestore())
  const dibs = await fixture.elsewhere(options)
  const jobs = dibs.jobs({ email: { maxAttempts: 2, retry: () => 0 } })
  const { id } = await jobs.add('email', null)
  await using worker = await jobs.work({
    email: () => {
      throw error()
    },
  })
  await until(() => worker.stats.failed === 1, 'the job to be dead')
  const lines = spy.mock.calls.map(([text]) => String(text))
  return { id, jobs, lines: lines.filter((line) => line.includes('dibs:job.')) }
}

it('writes a retry as one line and the last failure with its stack to stderr', async () => {
  const { id, lines } = await linesOfFailure({}, () => new Error('the mail server is down'))
  expect(lines).toHaveLength(2)
  expect(lines[0]).toMatch(
    /^\S+Z WARN dibs: job failed; it is tried again event=dibs:job\.failed subject=email /,
  )
  expect(lines[0]).toContain(` id=${id} attempt=1 `)
  expect(lines[0]).toContain('err="Error: the mail server is down"')
  expect(lines[0]).not.toContain('\n')
  expect(lines[1]).toMatch(/^\S+Z ERROR dibs: job is dead: .* attempt=2 /)
  expect(lines[1]).toContain('\n    Error: the mail server is down\n')
  expect(lines[1]).toContain('logged-failures.process.test.ts')
})

it('writes a permanent failure as an error at once', async () => {
  const { lines } = await linesOfFailure({}, () => new PermanentError('no such address'))
  expect(lines).toHaveLength(1)
  expect(lines[0]).toMatch(/^\S+Z ERROR dibs: job is dead: .* attempt=1 /)
})

it('writes nothing with `logger: false`', async () => {
  const { lines } = await linesOfFailure({ logger: false }, () => new Error('no'))
  expect(lines).toEqual([])
})

it('gives both to a logger, the last failure as an error', async () => {
  const written: unknown[] = []
  const write = (level: string) => (fields: object, message: string) =>
    void ('isFinal' in fields && written.push([level, message, fields]))
  const { lines } = await linesOfFailure(
    { logger: { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') } },
    () => new Error('no'),
  )
  expect(lines).toEqual([])
  const fields = expect.objectContaining({ subject: 'email', err: expect.any(Error) })
  expect(written).toEqual([
    ['warn', 'job failed; it is tried again', fields],
    ['error', 'job is dead: its handler failed for good', fields],
  ])
})

it('does not write that a job was snoozed', async () => {
  const spy = vi.spyOn(console, 'error').mockImplementation(() => {})
  onTestFinished(() => spy.mockRestore())
  const dibs = await fixture.elsewhere()
  const jobs = dibs.jobs({ early: {} })
  await jobs.add('early', null)
  await using worker = await jobs.work({
    early: () => {
      throw new SnoozeError(60_000, 'too early')
    },
  })
  await until(() => worker.stats.snoozed === 1, 'the job to be snoozed')
  expect(spy.mock.calls.filter(([text]) => String(text).includes('dibs:job.'))).toEqual([])
})

it('keeps the stack with the dead letter, of bounded length', async () => {
  const cause = new TypeError('the cause')
  const { id, jobs } = await linesOfFailure({ logger: false }, () => {
    return new Error('x'.repeat(10_000), { cause })
  })
  const [dead] = (await jobs.dead()).items
  expect(dead?.id).toBe(id)
  for (const { error } of [dead, (await jobs.history(id)).items[1]].filter((one) => one !== undefined)) {
    expect(error?.stack).toContain('logged-failures.process.test.ts')
    expect(error?.stack).toContain('Caused by: TypeError: the cause')
    expect(error?.stack?.length).toBeLessThanOrEqual(4_000)
  }
  expect((await jobs.history(id)).items[0]?.error).not.toHaveProperty('stack')
})

it('goes on when stderr is closed', async () => {
  const library = join(import.meta.dirname, '../../dist/index.js')
  const child = spawn(
    process.execPath,
    [
      ...['--input-type=module', '-e'],
      `import { Dibs } from ${JSON.stringify(library)}
       await new Promise((resolve) => process.stdin.once('data', resolve))
       process.stdin.destroy()
       const dibs = await Dibs.open({ url: ${JSON.stringify(directUrl)}, schema: '${fixture.schema.name}', migrate: 'off' })
       const jobs = dibs.jobs({ broken: { maxAttempts: 5, retry: () => 0 } })
       const { id } = await jobs.add('broken', null)
       await jobs.work({ broken: () => { throw new Error('no') } })
       await jobs.result(id, { waitMs: 30_000 }).catch((error) => console.log(error.message))
       await dibs.close()`,
    ],
    { stdio: ['pipe', 'pipe', 'pipe'] },
  )
  onTestFinished(() => void child.kill('SIGKILL'))
  child.stderr.destroy()
  child.stdin.end('go')
  let output = ''
  child.stdout.on('data', (text) => {
    output += text
  })
  const [code] = await once(child, 'exit')
  expect([code, output]).toEqual([0, 'no\n'])
})
