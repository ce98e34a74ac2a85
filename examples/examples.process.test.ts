import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, it, vi } from 'vitest'
import { directUrl, freshName, withPool } from '../test/database.js'

// Each starts a process or two.
vi.setConfig({ testTimeout: 60_000 })

// A database of its own: examples use the default schema and tables of their own in public.
const name = freshName('examples')

const at = (): string => {
  const target = new URL(directUrl)
  target.pathname = `/${name}`
  return target.href
}

beforeAll(() => withPool((pool) => pool.query(`create database ${name}`), { connectionString: directUrl }))
afterAll(() => withPool((pool) => pool.query(`drop database ${name}`), { connectionString: directUrl }))

/** Examples import the built package by its name, as a user would; `npm test` builds it first. */
const run = async (file: string, env: NodeJS.ProcessEnv = {}): Promise<string> => {
  const { stdout } = await promisify(execFile)(process.execPath, [join(import.meta.dirname, file)], {
    env: { ...process.env, ...env, DATABASE_URL: at() },
  })
  return stdout
}

const read = (file: string): string => readFileSync(join(import.meta.dirname, '..', file), 'utf8')

it('last-item.mjs prints what docs/transactions.md shows', async () => {
  const output = await run('last-item.mjs')
  expect(output).toContain('1 bought the last item, 9 were told')
  expect(read('docs/transactions.md')).toContain(output.trim())
})

it('once.mjs prints what docs/idempotency.md shows', async () => {
  const output = await run('once.mjs')
  expect(output).toContain('ten clicks: 1 payment, 9 replays')
  expect(read('docs/idempotency.md')).toContain(output.trim())
})

it('award.mjs prints what docs/compound.md shows', async () => {
  const output = await run('award.mjs')
  expect(output).toContain('ten clicks: 1 logged, 9 refused')
  expect(read('docs/compound.md')).toContain(output.trim())
})

it('bots/main.mjs kills one of its bots, and each sum is there once', async () => {
  // It exits with another code than 0, and so is rejected here, if anything is missing or there twice.
  const output = await run('bots/main.mjs', { BOTS: '3', JOBS: '36', KILLS: '1', WORK_MS: '100' })
  expect(output).toMatch(/bot \d is killed, with \d+/)
  expect(output).toMatch(/jobs added +36\n +done exactly once +36 /)
  expect(output).toContain('bots                     3   1 killed, 2 stopped in order')
  expect(output).toContain('All is right.')
})

const withoutTimes = (text: string): string => text.replace(/\d+\.\d s\)/g, '… s)')

it('crashing/pay.mjs prints what docs/crashing.md shows, which shows it as it is', async () => {
  const output = withoutTimes(await run('crashing/pay.mjs'))
  const printouts = [
    ...read('docs/crashing.md').matchAll(/^```\n((?:crash before|Harm at|No harm)[\s\S]*?)\n```$/gm),
  ]
  expect(printouts).toHaveLength(2)
  for (const [, text] of printouts) expect(output).toContain(withoutTimes(text as string))
  const [, code] = read('docs/crashing.md').match(/^```js\n([\s\S]*?)^```$/m) ?? []
  expect(read('examples/crashing/pay.mjs')).toContain(code)
})

/** What each prints in essentials: the titles and last lines of its explorations, in order. */
const races = {
  'last-item.mjs': [
    /^Race found/,
    /^ {2}Lost update/,
    /^ {2}Error: amount is -1$/,
    /^No violation in all 2 distinguishable schedules/,
  ],
  'one-row-only.mjs': [
    /^Race found/,
    /^ {2}Duplicate claim/,
    /^ {2}Error: 2 rows/,
    /^No violation in all 2 distinguishable schedules/,
  ],
  'on-call.mjs': [
    /^Race found .*REPEATABLE READ/,
    /^ {2}Write skew/,
    /^ {2}Error: nobody/,
    /^No violation in all .*SERIALIZABLE/,
  ],
  'claim-a-job.mjs': [
    /^Race found/,
    /^ {2}Duplicate claim/,
    /^ {2}Error: job 1 was run twice$/,
    /^No violation in all \d+ distinguishable schedules/,
  ],
  'deadlock.mjs': [
    /^Race found/,
    /^ {2}Deadlock/,
    /40P01/,
    /^No violation in all \d+ distinguishable schedules/,
  ],
  'function.mjs': [
    /^No violation in all \d+ distinguishable schedules/,
    /^ {2}Note: total\(\) runs as one step/,
    /^Race found/,
    /stops at 'a is read'/,
    /^ {2}Error: the report says 25/,
    /^No violation in all \d+ distinguishable schedules/,
  ],
}

const outputs: string[] = []

it.each(Object.entries(races))(
  'exploring/%s prints the race, and that the mended code has none',
  async (file, lines) => {
    const output = await run(`exploring/${file}`)
    outputs.push(withoutTimes(output))
    let rest = output.split('\n')
    for (const line of lines) {
      const found = rest.findIndex((one) => line.test(one))
      expect(found, `${line} in\n${output}`).toBeGreaterThanOrEqual(0)
      rest = rest.slice(found + 1)
    }
  },
)

it.each(['README.md', 'docs/exploring.md'])('%s quotes what the examples print', (file) => {
  const printouts = [...read(file).matchAll(/^```\n((?:Race found|No violation in all)[\s\S]*?)\n```$/gm)]
  expect(printouts.length).toBeGreaterThan(0)
  const printed = outputs.join('')
  for (const [, text] of printouts) expect(printed).toContain(withoutTimes(text as string))
})

it('docs/exploring.md shows an example as it is', () => {
  const [, code] = read('docs/exploring.md').match(/^```js\n([\s\S]*?)^```$/m) ?? []
  expect(read('examples/exploring/last-item.mjs')).toContain(code)
})
