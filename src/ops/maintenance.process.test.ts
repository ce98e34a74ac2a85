import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { directUrl, dropSchema, freshName, until } from '../../test/database.js'
import { Dibs } from '../dibs.js'
import type { OpenOptions } from '../postgres/open-options.js'

const program = join(import.meta.dirname, '../../test/children/maintain.mjs')

interface Message {
  readonly opened?: boolean
  readonly counts?: Readonly<Record<string, number>>
  readonly error?: string
}

/** A schema that has expired rows, and an instance beside it that maintains nothing. */
async function openExpired(): Promise<Dibs> {
  const schema = freshName()
  const dibs = await Dibs.open({ url: directUrl, schema, listen: false, maintain: false })
  onTestFinished(async () => {
    await dibs.close()
    await dropSchema(schema)
  })
  for (let n = 0; n < 10; n++) await dibs.kv.set(`k${n}`, n, { ttlMs: 1 })
  await dibs.once({ scope: 'over', key: 'k', keepMs: 1 }, async () => 1)
  return dibs
}

const countExpired = async ({ pool, schema }: Dibs): Promise<number> => {
  const { rows } = await pool.query(
    `select (select count(*) from ${schema}.kv where key like 'k%') + (select count(*) from ${schema}.claim where scope = 'over') as n`,
  )
  return Number(rows[0].n)
}

/** A process that uses a schema and runs no worker. */
class User {
  readonly messages: Message[] = []
  readonly #child: ChildProcess

  constructor(schema: string, options: OpenOptions = {}) {
    const given = JSON.stringify({ url: directUrl, schema, options })
    this.#child = fork(program, [given], { execArgv: [] })
    this.#child.on('message', (message: Message) => this.messages.push(message))
    onTestFinished(() => void this.#child.kill('SIGKILL'))
  }

  get rounds(): number {
    return this.messages.filter(({ counts }) => counts).length
  }

  opened(): Promise<unknown> {
    return until(() => this.messages.some(({ opened }) => opened), 'the process to open', 60_000)
  }

  async close(): Promise<unknown> {
    const exited = once(this.#child, 'exit')
    this.#child.send('close')
    const [code] = await exited
    return code
  }
}

it('a process without a worker removes expired rows, unless it is told not to', async () => {
  const [maintained, left] = [await openExpired(), await openExpired()]
  const without = new User(left.schema, { maintain: false })
  await without.opened()
  const user = new User(maintained.schema)
  await until(async () => (await countExpired(maintained)) === 0, 'expired rows to be removed', 60_000)
  expect(await maintained.kv.get('mine')).toBeDefined()
  expect(await countExpired(left)).toBe(11)
  expect(without.messages).toEqual([{ opened: true }])
  expect(await user.close()).toBe(0)
  expect(await without.close()).toBe(0)
})

it('of several processes, one does so in each interval', async () => {
  const dibs = await openExpired()
  const users = [1, 2, 3].map(() => new User(dibs.schema))
  await Promise.all(users.map((user) => user.opened()))
  await until(async () => (await countExpired(dibs)) === 0, 'expired rows to be removed', 60_000)
  // Its turn ends now. Somebody has the next one, which is the second round of all.
  const rounds = (): number => users.reduce((sum, user) => sum + user.rounds, 0)
  await until(() => rounds() === 1, 'word of the first round')
  const [turn] = await dibs.locks.inspect('dibs:maintenance')
  expect(turn?.holder).toMatch(/:\d+$/)
  await dibs.locks.forceRelease('dibs:maintenance')
  await until(() => rounds() === 2, 'the next turn', 60_000)
  expect(users.flatMap(({ messages }) => messages.filter(({ error }) => error))).toEqual([])
  for (const user of users) expect(await user.close()).toBe(0)
  expect(rounds()).toBe(2)
})

it('a process that has nothing else to do ends, though it is not closed', async () => {
  const dibs = await openExpired()
  const text = `import { Dibs } from '${join(import.meta.dirname, '../../dist/index.js')}'
    const dibs = await Dibs.open(${JSON.stringify({ url: directUrl, schema: dibs.schema, migrate: 'off' })})
    await dibs.kv.get('mine')`
  const child = fork('', [], { execArgv: ['--input-type=module', '--eval', text] })
  onTestFinished(() => void child.kill('SIGKILL'))
  const [code] = await once(child, 'exit')
  expect(code).toBe(0)
})
