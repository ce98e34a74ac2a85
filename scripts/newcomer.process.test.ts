import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { directUrl, freshName, until, withPool } from '../test/database.js'
import { createPackedProject } from '../test/packed-project.js'

// Follows the documentation as a newcomer does, with the package as it would be published. Needs a build.

const root = join(import.meta.dirname, '..')
const read = (file: string): string => readFileSync(join(root, file), 'utf8')
const compiler = join(root, 'node_modules/typescript/bin/tsc')
const tutorial = read('docs/getting-started.md')

let project: string

beforeAll(async () => {
  project = (await createPackedProject({ name: 'shop', type: 'module' })).folder
})
afterAll(() => rmSync(project, { recursive: true, force: true }))

/** A folder of the project with the configuration of the tutorial, and a database of its own. */
async function createFolder(name: string): Promise<{ folder: string; env: NodeJS.ProcessEnv }> {
  const folder = join(project, name)
  mkdirSync(folder)
  writeFileSync(join(folder, 'tsconfig.json'), namedBlocks(tutorial)['tsconfig.json'] ?? '')
  const database = freshName('newcomer')
  await withPool((pool) => pool.query(`create database ${database}`), { connectionString: directUrl })
  onTestFinished(() =>
    withPool((pool) => pool.query(`drop database ${database} with (force)`), { connectionString: directUrl }),
  )
  const url = new URL(directUrl)
  url.pathname = `/${database}`
  return { folder, env: { ...process.env, DATABASE_URL: url.href, PORT: '0' } }
}

/** The code blocks of a guide that have a file name in front of them. */
function namedBlocks(guide: string): Record<string, string> {
  const blocks = guide.matchAll(/^\*\*`([\w.]+)`\*\*\n\n```\w+\n([\s\S]*?)^```$/gm)
  return Object.fromEntries([...blocks].map(([, name, code]) => [name, code]))
}

/** Compiles with the `tsconfig.json` of the folder. Fails with what the compiler says. */
async function compile(folder: string): Promise<void> {
  await promisify(execFile)(process.execPath, [compiler], { cwd: folder }).catch(({ stdout }) => {
    throw new Error(stdout)
  })
}

interface Running {
  readonly child: ChildProcess
  /** All that it has printed so far. */
  readonly output: () => string
  readonly isOver: () => boolean
}

function start(folder: string, env: NodeJS.ProcessEnv, args: readonly string[]): Running {
  const child = spawn(process.execPath, args, { cwd: folder, env, stdio: ['ignore', 'pipe', 'pipe'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  let output = ''
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (chunk) => {
      output += chunk
    })
  let isClosed = false
  child.once('close', () => {
    isClosed = true
  })
  return { child, output: () => output, isOver: () => isClosed }
}

async function interrupt({ child, isOver, output }: Running): Promise<void> {
  child.kill('SIGINT')
  await until(isOver, 'the program to stop')
  expect(child.exitCode, output()).toBe(0)
}

/** Without what is different in each run: times, random delays, the duration of an exploration. */
const steady = (text: string): string[] =>
  text
    .trim()
    .replace(/^\S+Z WARN/gm, '<time> WARN')
    .replace(/retryInMs=\d+/g, 'retryInMs=<n>')
    .replace(/\d+\.\d s\)/g, '<n> s)')
    .split('\n')
    .sort()

describe('docs/getting-started.md', () => {
  it('prints what it shows, step by step', { timeout: 300_000 }, async () => {
    const { folder, env } = await createFolder('tutorial')
    const files = namedBlocks(tutorial)
    expect(Object.keys(files)).toEqual([
      ...['tsconfig.json', 'shop.ts', 'setup.ts', 'order.ts', 'worker.ts', 'race.ts'],
    ])
    for (const [name, code] of Object.entries(files)) writeFileSync(join(folder, name), code)
    await compile(folder)

    // A command, words of explanation, what the command prints.
    const steps = [
      ...tutorial.matchAll(/^```sh\n(?:npx tsc && )?node (.+)\n```\n+(?:[^`\n].*\n+)?```\n([\s\S]*?)^```$/gm),
    ]
    expect(steps.map(([, command]) => command)).toEqual([
      ...['setup.js', 'order.js key-1', 'order.js key-1', 'order.js key-2', 'worker.js', 'order.js key-3'],
      ...['race.js', 'race.js'],
    ])
    for (const [n, [, command = '', shown = '']] of steps.entries()) {
      if (n === steps.length - 1) {
        changeRace(folder)
        await compile(folder)
      }
      const running = start(folder, env, command.split(' '))
      await until(
        () => running.isOver() || steady(running.output()).length >= steady(shown).length,
        `the output of ${command}`,
        120_000,
      )
      if (command === 'worker.js') await interrupt(running)
      await until(running.isOver, `the end of ${command}`, 120_000)
      expect(steady(running.output()), command).toEqual(steady(shown))
    }
  })

  /** Puts the table and the function of the last code block into race.ts, as the reader does. */
  function changeRace(folder: string): void {
    const [table = '', giveCoupon = ''] =
      [...tutorial.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].at(-1)?.[1]?.trim().split('\n\n') ?? []
    const file = join(folder, 'race.ts')
    const before = readFileSync(file, 'utf8')
    const after = before
      .replace(/^await dibs\.pool\.query.*$/m, () => table)
      .replace(/^async function giveCoupon[\s\S]*?^\}$/m, () => giveCoupon)
    expect(after).not.toBe(before)
    writeFileSync(file, after)
  }
})

it('the example of README.md places one order', { timeout: 120_000 }, async () => {
  const { folder, env } = await createFolder('readme')
  const code = [...read('README.md').matchAll(/^```ts\n([\s\S]*?)^```$/gm)]
    .map(([, text = '']) => text)
    .find((text) => text.includes('placeOrder'))
  // The example has no shutdown. It is for a process that goes on.
  writeFileSync(
    join(folder, 'order.ts'),
    `process.once('SIGINT', () => dibs.close().then(() => process.exit(0)))\n${code}`,
  )
  await compile(folder)
  const running = start(folder, env, ['order.js'])
  // The email may be sent before the second of the two calls has its answer.
  const lines = (): string[] => running.output().trim().split('\n').sort()
  await until(() => running.isOver() || lines().length >= 2, 'the answers and the email')
  await interrupt(running)
  expect(lines()).toEqual([
    "[ { orderId: '1' }, { orderId: '1' } ]",
    'to ann@example.org: Your order: one lamp',
  ])
})

describe('examples/shop', () => {
  it('compiles, and does what its README says', { timeout: 120_000 }, async () => {
    const { folder, env } = await createFolder('hono-and-drizzle')
    for (const file of ['schema.ts', 'shop.ts', 'main.ts', 'tsconfig.json'])
      cpSync(join(root, 'examples/shop', file), join(folder, file))
    await compile(folder)
    const running = start(folder, env, ['main.js'])
    await until(() => running.isOver() || running.output().includes('listening on'), 'the server')
    const [, url] = /listening on (http:\S+)/.exec(running.output()) ?? []
    expect(url, running.output()).toBeDefined()

    const order = async (key: string, sku: unknown, user = 'ann@example.org') => {
      const response = await fetch(`${url}/orders`, {
        method: 'POST',
        headers: { 'idempotency-key': `"${key}"`, ...(user && { 'x-user': user }) },
        body: JSON.stringify({ sku }),
      })
      const { status, headers } = response
      return {
        ...{
          status,
          isReplayed: headers.get('idempotency-replayed'),
          retryAfter: headers.get('retry-after'),
        },
        body: await response.text(),
      }
    }

    expect((await order('a1', 'lamp', '')).status).toBe(401)
    const first = await order('a1', 'lamp')
    expect(first).toMatchObject({ status: 201, isReplayed: null })
    expect(await order('a1', 'lamp')).toEqual({ ...first, isReplayed: 'true' })
    expect((await order('a1', 'chair')).status).toBe(422)
    expect((await order('a2', 7)).status).toBe(422)
    expect((await order('a3', 'sofa')).status).toBe(404)
    expect((await order('a4', 'chair')).status).toBe(201)
    expect(JSON.parse((await order('a5', 'chair')).body)).toMatchObject({
      status: 409,
      code: 'DIBS_INSUFFICIENT',
    })
    expect((await order('a6', 'lamp')).status).toBe(201)
    const fourth = await order('a7', 'lamp')
    expect(JSON.parse(fourth.body)).toMatchObject({ status: 429, code: 'DIBS_QUOTA_EXCEEDED' })
    expect(Number(fourth.retryAfter)).toBeGreaterThan(0)
    expect((await order('b1', 'lamp', 'bob@example.org')).status).toBe(201)

    // Refused orders have taken nothing, and each placed one is followed by one email.
    const sent = (): string[] => running.output().match(/^sent .*$/gm) ?? []
    await until(() => running.isOver() || sent().length === 4, 'four emails')
    expect(
      sent()
        .map((line) => line.replace(/, attempt [12]$/, ''))
        .sort(),
    ).toEqual([
      'sent "Your order: one chair" to ann@example.org',
      'sent "Your order: one lamp" to ann@example.org',
      'sent "Your order: one lamp" to ann@example.org',
      'sent "Your order: one lamp" to bob@example.org',
    ])
    expect(sent().filter((line) => line.endsWith('attempt 2'))).toHaveLength(2)
    const { emailJob } = JSON.parse(first.body)
    const email = await fetch(`${url}/emails/${emailJob}`, { headers: { 'x-user': 'ann@example.org' } })
    expect(await email.json()).toMatchObject({ state: 'succeeded' })
    const { rows } = await withPool((pool) => pool.query('select sku, amount from shop_stock order by sku'), {
      connectionString: env.DATABASE_URL ?? '',
    })
    expect(rows).toEqual([
      { sku: 'chair', amount: 0 },
      { sku: 'lamp', amount: 2 },
    ])
    await interrupt(running)
  })
})
