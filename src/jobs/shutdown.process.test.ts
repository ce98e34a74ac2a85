import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { directUrl, dropSchema, freshName, withPool } from '../../test/database.js'
import { Dibs } from '../dibs.js'

const root = join(import.meta.dirname, '../..')
const read = (path: string): string => readFileSync(join(root, path), 'utf8')
const library = join(root, 'dist/index.js')
const schema = freshName()

/** The code that the guides tell users to run at a signal. */
const [snippet = ''] = /const stop = [^`]*process\.once\('SIGTERM'[^\n]*/.exec(read('docs/jobs.md')) ?? []

const DRAIN_MS = 1_000
/** As documented: `close()` resolves within `drainMs` and ten seconds. The rest is for a busy machine. */
const MOST_MS = DRAIN_MS + 10_000 + 5_000

beforeAll(async () => {
  await (await Dibs.open({ url: directUrl, schema })).close()
})

afterAll(() => dropSchema(schema))

/** Runs a program in a process of its own until it prints `ready`. */
async function start(body: string): Promise<ChildProcess> {
  const program = `
    import { Dibs } from ${JSON.stringify(library)}
    const dibs = await Dibs.open({ url: ${JSON.stringify(directUrl)}, schema: '${schema}', migrate: 'off' })
    const ready = () => process.stdout.write('ready')
    ${body}`
  const child = spawn(process.execPath, ['--input-type=module', '-e', program], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  onTestFinished(() => void child.kill('SIGKILL'))
  await Promise.race([
    once(child.stdout, 'data'),
    once(child, 'exit').then(() => Promise.reject(new Error('the process ended early'))),
  ])
  return child
}

/** How long the process takes to end, and its exit code. */
async function untilExit(child: ChildProcess, signal?: NodeJS.Signals) {
  const since = performance.now()
  const exited = child.exitCode === null ? once(child, 'exit') : Promise.resolve([child.exitCode])
  if (signal) child.kill(signal)
  const [code] = await exited
  return { code, ms: performance.now() - since }
}

const worker = (handler: string, transactional = false): string => `
  const jobs = dibs.jobs({ work: { transactional: ${transactional} } })
  await jobs.add('work', null)
  await jobs.work({ work: ${handler} }, { drainMs: ${DRAIN_MS} })
  ${snippet}`

describe('the shutdown of the guides ends the process', () => {
  it('and stands word for word wherever a guide shows a shutdown', () => {
    expect(snippet).toContain('dibs.close()')
    const guides = readdirSync(join(root, 'docs')).map((name) => `docs/${name}`)
    const all = ['README.md', ...guides].filter((path) => path.endsWith('.md'))
    const showing = all.filter((path) => /^process\.(?:once|on)\('SIG/m.test(read(path)))
    expect(showing.length).toBeGreaterThanOrEqual(2)
    for (const path of showing) expect(read(path), path).toContain(snippet)
  })

  it.each([
    [
      'that listens to its signal',
      `(_, { signal }) => (ready(), new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason))))`,
    ],
    ['that ignores its signal', `() => (ready(), new Promise(() => {}))`],
    ['that has left a timer', `() => (setInterval(() => {}, 1_000), ready(), new Promise(() => {}))`],
    [
      'that has a client of the pool',
      `async () => (await dibs.pool.connect(), ready(), new Promise(() => {}))`,
    ],
    [
      'that waits inside a call',
      `() => dibs.withLock('shutdown', {}, () => (ready(), new Promise(() => {})))`,
    ],
  ])('with a handler %s', async (_, handler) => {
    const child = await start(worker(handler))
    const { code, ms } = await untilExit(child, 'SIGTERM')
    expect(code).toBe(0)
    expect(ms).toBeLessThan(MOST_MS)
  })

  it('with a transactional handler in a long statement', async () => {
    const statement = `select '${schema}', pg_sleep(100)`
    const child = await start(worker(`(_, { tx }) => (ready(), tx.query(\`${statement}\`))`, true))
    const { code, ms } = await untilExit(child, 'SIGTERM')
    // The server goes on with the statement: it learns that its client is gone when it answers.
    await withPool((pool) =>
      pool.query('select pg_terminate_backend(pid) from pg_stat_activity where query = $1', [statement]),
    )
    expect(code).toBe(0)
    expect(ms).toBeLessThan(MOST_MS)
  })

  it('at SIGINT too, and with locks held', async () => {
    const child = await start(
      `await dibs.lock('shutdown-${process.pid}'); setInterval(() => {}, 1_000); ${snippet}; ready()`,
    )
    const { code, ms } = await untilExit(child, 'SIGINT')
    expect(code).toBe(0)
    expect(ms).toBeLessThan(MOST_MS)
  })
})

describe('a program that forgets close() ends all the same', () => {
  it.each([
    ['after a job was added', `await dibs.jobs({ work: {} }).add('work', null)`],
    ['while it holds a lock', `await dibs.lock('forgotten-${process.pid}')`],
  ])('%s', async (_, body) => {
    const child = await start(`${body}; ready()`)
    const { code, ms } = await untilExit(child)
    expect(code).toBe(0)
    expect(ms).toBeLessThan(9_000)
  })
})
