import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { directUrl, freshName, withPool } from '../../test/database.js'

const root = join(import.meta.dirname, '../..')

// A database of its own: examples use the default schema and tables of their own in public.
const name = freshName('examples')
const target = new URL(directUrl)
target.pathname = `/${name}`

beforeAll(() => withPool((pool) => pool.query(`create database ${name}`), { connectionString: directUrl }))
afterAll(() => withPool((pool) => pool.query(`drop database ${name}`), { connectionString: directUrl }))

/** As its first lines say. */
const programs: Record<string, () => string> = {
  express: () => 'examples/http/express.mjs',
  fastify: () => 'examples/http/fastify.mjs',
  hono: () => 'examples/http/hono.mjs',
  node: () => 'examples/http/node.mjs',
  nest: () => {
    execFileSync('npx', ['--no-install', 'tsc', '-p', 'examples/http/nest'], { cwd: root })
    return 'generated/nest-example/main.js'
  },
}

it.each(Object.keys(programs))('%s', { timeout: 120_000 }, async (framework) => {
  const program = join(root, (programs[framework] as () => string)())
  const child = spawn(process.execPath, [program], {
    env: { ...process.env, DATABASE_URL: target.href, PORT: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const ended = once(child, 'exit')
  onTestFinished(() => void child.kill('SIGKILL'))
  const [said] = await Promise.race([once(child.stdout, 'data'), ended])
  const [, at] = /listening on (http:\S+)/.exec(String(said)) ?? []
  expect(at, String(said)).toBeDefined()

  const send = async (path: string, key: string, body: unknown, user = 'ann') => {
    const headers: Record<string, string> = { 'idempotency-key': key, 'content-type': 'application/json' }
    if (user) headers['x-user'] = user
    const answer = await fetch(`${at}${path}`, { method: 'POST', headers, body: JSON.stringify(body) })
    return {
      status: answer.status,
      isReplayed: answer.headers.get('idempotency-replayed'),
      limit: answer.headers.get('ratelimit-policy'),
      body: await answer.text(),
    }
  }
  expect((await send('/orders', '"1"', { item: 'tea' }, '')).status).toBe(401)
  const first = await send('/orders', '"1"', { item: 'tea' })
  expect(first).toMatchObject({ status: 201, isReplayed: null, limit: '"api";q=100;w=60' })
  expect(await send('/orders', '1', { item: 'tea' })).toEqual({ ...first, isReplayed: 'true' })
  expect((await send('/orders', '1', { item: 'coffee' })).status).toBe(422)
  const paid = await send('/payments', '1', { amount: 5 })
  expect(JSON.parse(paid.body)).toEqual({ payment: 1, amount: 5 })
  expect(await send('/payments', '1', { amount: 5 })).toMatchObject({ isReplayed: 'true', body: paid.body })
  expect((await send('/payments', '1', { amount: 5 }, 'bob')).body).toBe('{"payment":2,"amount":5}')
  const orders = await fetch(`${at}/orders`, { headers: { 'x-user': 'ann' } })
  expect(await orders.json()).toEqual([{ id: JSON.parse(first.body).id, item: 'tea' }])

  child.kill('SIGTERM')
  expect(await ended).toEqual([0, null])
  await withPool((pool) => pool.query('drop table orders; drop schema dibs cascade'), {
    connectionString: target.href,
  })
})
