import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { connect as connectSocket, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished, vi } from 'vitest'
import { directUrl, freshName, until, url, viaPgBouncer } from '../../../test/database.js'
import { InvalidInputError } from '../../errors.js'
import { ActiveFaults } from './active-faults.js'
import type { CutFault, Fault, ScriptedFault } from './fault.js'
import { PgProxy, type PgProxyOptions } from './pg-proxy.js'

const direct = new pg.Pool({ connectionString: directUrl })
const table = freshName()
const insert = `insert into ${table} values (default)`

beforeAll(() => direct.query(`create table ${table} (id serial)`))
beforeEach(() => direct.query(`truncate ${table}`))
afterAll(async () => {
  await direct.query(`drop table ${table}`)
  await direct.end()
})

const rows = async (): Promise<number> =>
  (await direct.query(`select count(*)::int as n from ${table}`)).rows[0].n

async function start(options: Partial<PgProxyOptions> = {}): Promise<PgProxy> {
  const proxy = await PgProxy.start({ url, ...options })
  onTestFinished(() => proxy.close())
  return proxy
}

async function connect(proxy: PgProxy, config: pg.ClientConfig = {}): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: proxy.url, ...config })
  client.on('error', () => {})
  await client.connect()
  onTestFinished(() => void Reflect.get(client, 'connection').stream.destroy())
  return client
}

/** The error of what must fail. */
const failure = (work: Promise<unknown>): Promise<Error & { code?: string; severity?: string }> =>
  work.then(
    () => {
      throw new Error('it did not fail')
    },
    (reason) => reason,
  )

async function elapsedMs(work: () => Promise<unknown>): Promise<number> {
  const startedAt = performance.now()
  await work()
  return performance.now() - startedAt
}

/** Looked at again and again for a while in which a server answers a hundred times. */
async function stays(probe: () => Promise<boolean> | boolean, what: string): Promise<void> {
  for (let n = 0; n < 20; n++) {
    if (!(await probe())) throw new Error(`It did not stay so: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 10))
  }
}

function isPending(work: Promise<unknown>): () => Promise<boolean> {
  let settled = false
  const settle = (): void => {
    settled = true
  }
  work.then(settle, settle)
  return async () => !settled
}

const lives = async (pid: number): Promise<boolean> =>
  (await direct.query('select 1 from pg_stat_activity where pid = $1', [pid])).rows.length === 1
const pidOf = async (client: pg.Client): Promise<number> =>
  (await client.query('select pg_backend_pid() as pid')).rows[0].pid

describe('latency', () => {
  it.each([
    [{ direction: 'toServer' }, 60],
    [{ direction: 'toClient' }, 60],
    [{}, 120],
    [{ jitterMs: 40 }, 40],
  ] as const)('with %o makes a round trip last %i ms or longer', async (more, leastMs) => {
    const proxy = await start()
    const client = await connect(proxy)
    const latency = proxy.inject({ kind: 'latency', delayMs: 60, ...more })
    // Timers of Node.js may be a few milliseconds early.
    expect(await elapsedMs(() => client.query('select 1'))).toBeGreaterThan(leastMs - 20)
    expect(await latency.happened).toMatchObject({ atMs: expect.any(Number) })
    latency.end()
    await client.query('select 1')
    await client.end()
  })

  it('keeps the order, though each answer is late by something else', async () => {
    const proxy = await start()
    const client = await connect(proxy, { pipeline: true } as pg.ClientConfig)
    proxy.inject({ kind: 'latency', delayMs: 5, jitterMs: 5 })
    const all = Array.from({ length: 30 }, (_, n) => n)
    const answers = await Promise.all(all.map((n) => client.query('select $1::int as n', [n])))
    expect(answers.map(({ rows: [row] }) => row.n)).toEqual(all)
  })

  it('has its jitter from the seed', async () => {
    const spy = vi.spyOn(ActiveFaults.prototype, 'lateMs')
    onTestFinished(() => spy.mockRestore())
    const draws = async (seed: number) => {
      spy.mockClear()
      const proxy = await start({ seed })
      proxy.inject({ kind: 'latency', delayMs: 4, jitterMs: 4 })
      for (let connections = 0; connections < 2; connections++) {
        const client = await connect(proxy)
        for (let n = 0; n < 5; n++) await client.query('select $1::int', [n])
        Reflect.get(client, 'connection').stream.destroy()
        await until(() => proxy.connections === 0, 'the end')
      }
      const of = (way: string) => [
        ...new Set(spy.mock.calls.filter(([to]) => to === way).map(([, luck]) => luck)),
      ]
      return { toServer: of('toServer'), toClient: of('toClient') }
    }
    const first = await draws(5)
    expect(first.toServer.length).toBeGreaterThan(10)
    expect(first.toClient).not.toEqual(first.toServer)
    expect(await draws(5)).toEqual(first)
    expect(await draws(6)).not.toEqual(first)
  })
})

describe('bandwidth', () => {
  it.each([
    ['toClient', "select repeat('x', 10000) || $1", ''],
    ['toServer', 'select length($1)', 'x'.repeat(10_000)],
  ] as const)('is limited %s', async (direction, sql, value) => {
    const proxy = await start()
    const client = await connect(proxy)
    proxy.inject({ kind: 'bandwidth', bytesPerSecond: 40_000, direction })
    expect(await elapsedMs(() => client.query(sql, [value]))).toBeGreaterThanOrEqual(250)
    proxy.inject({ kind: 'heal' })
    await client.query(sql, [value])
  })
})

describe('a black hole', () => {
  it('to the server: what is asked does not arrive before it ends', async () => {
    const proxy = await start()
    const client = await connect(proxy)
    const hole = proxy.inject({ kind: 'black-hole', direction: 'toServer' })
    const work = client.query(insert)
    await until(() => proxy.history.some(({ statement }) => statement === insert), 'the request')
    await stays(async () => (await rows()) === 0, 'nothing inserted')
    hole.end()
    await work
    expect(await rows()).toBe(1)
  })

  it('to the client: it is done, and the answer does not arrive before it ends', async () => {
    const proxy = await start()
    const client = await connect(proxy)
    const hole = proxy.inject({ kind: 'black-hole', direction: 'toClient' })
    const work = client.query(insert)
    await until(async () => (await rows()) === 1, 'the insert')
    await stays(isPending(work), 'no answer')
    hole.end()
    await work
  })

  it('lets new connections hang, of which the server knows nothing', async () => {
    const proxy = await start()
    const hole = proxy.inject({ kind: 'black-hole' })
    const hasty = new pg.Client({ connectionString: proxy.url, connectionTimeoutMillis: 200 })
    expect((await failure(hasty.connect())).message).toMatch(/timeout/)
    const application_name = freshName()
    const patient = new pg.Client({ connectionString: proxy.url, application_name })
    const connecting = patient.connect()
    await stays(isPending(connecting), 'not connected')
    const seen = await direct.query('select 1 from pg_stat_activity where application_name = $1', [
      application_name,
    ])
    expect(seen.rows).toEqual([])
    hole.end()
    await connecting
    await patient.end()
  })

  it.skipIf(viaPgBouncer)('hides from the server that the client is gone', async () => {
    const proxy = await start()
    const client = await connect(proxy)
    const pid = await pidOf(client)
    const hole = proxy.inject({ kind: 'black-hole' })
    Reflect.get(client, 'connection').stream.destroy()
    await stays(() => lives(pid), 'the session is there')
    hole.end()
    await until(async () => !(await lives(pid)), 'the session to end')
    await until(() => proxy.connections === 0, 'the connection to be closed')
  })
})

it('resets a connection to a server behind a Unix socket', async () => {
  const folder = await mkdtemp(join(tmpdir(), 'dibs-'))
  const sockets = new Set<Socket>()
  const server = createServer((socket) => sockets.add(socket.on('error', () => {})))
  await new Promise<void>((resolve) => server.listen(join(folder, '.s.PGSQL.5432'), resolve))
  onTestFinished(async () => {
    for (const socket of sockets) socket.destroy()
    await promisify(server.close.bind(server))()
    await rm(folder, { recursive: true })
  })
  const proxy = await start({ url: `postgres://app@localhost/shop?host=${folder}` })
  const client = new pg.Client({ connectionString: proxy.url })
  const failed = failure(client.connect())
  await until(() => sockets.size === 1, 'a connection to the server')
  proxy.inject({ kind: 'reset' })
  expect(await failed).toMatchObject({ code: 'ECONNRESET' })
  await until(() => proxy.connections === 0, 'no connection')
})

it('refuses new connections, and leaves those that are open', async () => {
  const proxy = await start()
  const client = await connect(proxy)
  const refusal = proxy.inject({ kind: 'refuse' })
  expect((await failure(new pg.Client(proxy.url).connect())).message).toMatch(/ECONNRESET|terminated/)
  expect(proxy.history.at(-1)).toMatchObject({ event: 'refused', connection: 2 })
  await client.query('select 1')
  refusal.end()
  await connect(proxy)
})

it('resets all connections, on both sides', async () => {
  const proxy = await start()
  const clients = [await connect(proxy), await connect(proxy)]
  const pids = viaPgBouncer ? [] : await Promise.all(clients.map(pidOf))
  const lost = clients.map((client) => once(client, 'error'))
  const { happened } = proxy.inject({ kind: 'reset' })
  for (const [error] of await Promise.all(lost)) expect(error).toMatchObject({ code: 'ECONNRESET' })
  await happened
  await until(() => proxy.connections === 0, 'the connections to be closed')
  for (const pid of pids) await until(async () => !(await lives(pid)), 'the session to end')
  await connect(proxy)
})

const expectedErrors: Record<string, object> = {
  reset: { code: 'ECONNRESET' },
  close: { message: 'Connection terminated unexpectedly' },
  panic: { code: '58030', severity: 'ПАНИКА' },
}

describe.each(Object.keys(expectedErrors) as ('reset' | 'close' | 'panic')[])('a cut by %s', (how) => {
  const cut: Omit<CutFault, 'when'> = { kind: 'cut', statement: 'INSERT into', how, severity: 'ПАНИКА' }

  it.each([
    ['simple', []],
    ['extended', [1]],
  ])('before a statement (%s): the server does not see it', async (_, values) => {
    const proxy = await start()
    const client = await connect(proxy)
    const { happened } = proxy.inject({ ...cut, when: 'before' })
    await client.query('select 1')
    const sql = values.length > 0 ? `insert into ${table} values ($1)` : insert
    expect(await failure(client.query(sql, values))).toMatchObject(expectedErrors[how] ?? {})
    expect(await happened).toMatchObject({ connection: 1, statement: sql })
    await until(() => proxy.connections === 0, 'the connection to be closed')
    expect(await rows()).toBe(0)
    await (await connect(proxy)).query(insert)
    expect(await rows()).toBe(1)
  })

  it.each([
    ['simple', []],
    ['extended', [1]],
  ])('after a statement (%s): the server has executed it', async (_, values) => {
    const proxy = await start()
    const client = await connect(proxy)
    const { happened } = proxy.inject({ ...cut, when: 'after' })
    await client.query('select 1')
    const sql = `insert into ${table} values (${values.length > 0 ? '$1' : 1}) returning id`
    expect(await failure(client.query(sql, values))).toMatchObject(expectedErrors[how] ?? {})
    expect(await rows()).toBe(1)
    expect(await happened).toMatchObject({ connection: 1, statement: sql })
    await until(() => proxy.connections === 0, 'the connection to be closed')
    await (await connect(proxy)).query(insert)
    expect(await rows()).toBe(2)
  })

  it.each([
    ['before', 0],
    ['after', 1],
  ] as const)('%s COMMIT leaves %i rows', async (when, kept) => {
    const proxy = await start()
    const client = await connect(proxy)
    proxy.inject({ kind: 'cut', when, how, statement: '/^commit$/' })
    await client.query('begin')
    await client.query('create temp table gone (id int) on commit drop')
    await client.query(insert)
    await failure(client.query('COMMIT'))
    await until(() => proxy.connections === 0, 'the connection to be closed')
    expect(await rows()).toBe(kept)
  })
})

describe('a cut by silence', () => {
  it.each([
    ['before', 0],
    ['after', 1],
  ] as const)('%s a statement lasts until it is ended, and spares other connections', async (when, done) => {
    const proxy = await start()
    const client = await connect(proxy)
    const other = await connect(proxy)
    const cut = proxy.inject({ kind: 'cut', when, statement: 'insert', how: 'black-hole' })
    const work = client.query(`${insert} returning 7 as n`)
    expect(await cut.happened).toMatchObject({ connection: 1 })
    await stays(async () => (await rows()) === done, 'executed or not')
    await stays(isPending(work), 'no answer')
    expect((await other.query('select 8 as n')).rows).toEqual([{ n: 8 }])
    cut.end()
    expect((await work).rows).toEqual([{ n: 7 }])
    expect(await rows()).toBe(1)
    expect((await client.query('select 9 as n')).rows).toEqual([{ n: 9 }])
  })
})

describe('which statement is cut', () => {
  it('is the nth that fits, over all connections, as many times as was said', async () => {
    const proxy = await start()
    const clients = await Promise.all(Array.from({ length: 5 }, () => connect(proxy)))
    const cut = proxy.inject({ kind: 'cut', when: 'before', statement: 'insert', nth: 2, times: 2 })
    const answers: string[] = []
    for (const client of clients)
      answers.push(
        await client.query(insert).then(
          () => 'done',
          () => 'cut',
        ),
      )
    expect(answers).toEqual(['done', 'cut', 'cut', 'done', 'done'])
    expect(cut.strikes).toBe(2)
    expect(proxy.history.filter(({ event }) => event === 'cut').map(({ connection }) => connection)).toEqual([
      2, 3,
    ])
    expect(await rows()).toBe(3)
  })

  it('is any, and each, where nothing is said of it', async () => {
    const proxy = await start()
    const cut = proxy.inject({ kind: 'cut', when: 'after', times: 'always' })
    for (let n = 0; n < 3; n++) await failure((await connect(proxy)).query(insert))
    expect(await rows()).toBe(3)
    cut.end()
    await (await connect(proxy)).query(insert)
  })

  it.skipIf(viaPgBouncer)('may be one whose text was sent long before', async () => {
    const proxy = await start()
    const client = await connect(proxy)
    const prepared = { name: 'named', text: `${insert} returning id` }
    await client.query(prepared)
    proxy.inject({ kind: 'cut', when: 'after', statement: prepared.text })
    await failure(client.query(prepared))
    expect(await rows()).toBe(2)
  })

  it.each([
    ['before', 1],
    ['after', 2],
  ] as const)('may be one of several sent at once: %s it %i are executed', async (when, executed) => {
    const proxy = await start()
    const client = await connect(proxy, { pipeline: true } as pg.ClientConfig)
    proxy.inject({ kind: 'cut', when, statement: 'two', how: 'close' })
    const [one, two, three] = await Promise.allSettled(
      ['one', 'two', 'three'].map((name) => client.query(`${insert} -- ${name}`)),
    )
    expect([one?.status, two?.status, three?.status]).toEqual(['fulfilled', 'rejected', 'rejected'])
    expect(await rows()).toBe(executed)
  })

  it('in an orderly way may be followed by a reset at once, and the proxy closes', async () => {
    const proxy = await start()
    const client = await connect(proxy)
    const cut = proxy.inject({ kind: 'cut', when: 'before', statement: 'one', how: 'close' })
    const failed = failure(client.query('select 1 -- one'))
    await cut.happened
    proxy.inject({ kind: 'reset' })
    await failed
    await until(() => proxy.connections === 0, 'no connection')
    await proxy.close()
  })

  it('may be one of postgres.js, which asks for a description first', async () => {
    const proxy = await start()
    const sql = postgres(proxy.url, { max: 1, prepare: !viaPgBouncer })
    onTestFinished(() => sql.end({ timeout: 0 })) // a connection that was lost it would wait for
    for (const [when, kept] of [
      ['before', 0],
      ['after', 1],
    ] as const) {
      const cut = proxy.inject({ kind: 'cut', when, statement: table })
      await failure(sql`insert into ${sql(table)} values (${1})`.execute())
      expect(cut.strikes).toBe(1)
      expect(await rows()).toBe(kept)
    }
  })

  it('is none when the server itself fails first: what it says arrives', async () => {
    const proxy = await start()
    const client = await connect(proxy)
    const cut = proxy.inject({ kind: 'cut', when: 'after', statement: 'pg_sleep' })
    const settled = failure(client.query("select pg_sleep(60), 'to be ended'"))
    await until(async () => {
      const { rowCount } = await direct.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
         where query = 'select pg_sleep(60), ''to be ended''' and pid <> pg_backend_pid()`,
      )
      return rowCount === 1
    }, 'the statement to run')
    // PgBouncer says it in its own words.
    expect(await settled).toMatchObject({ code: viaPgBouncer ? expect.any(String) : '57P01' })
    expect(cut.strikes).toBe(0)
  })

  it('is none after the cut was taken back', async () => {
    const proxy = await start()
    const client = await connect(proxy)
    const cut = proxy.inject({ kind: 'cut', when: 'after', statement: 'pg_sleep' })
    const work = client.query('select pg_sleep(0.2), 7 as n')
    await until(() => proxy.history.some(({ statement }) => statement?.includes('pg_sleep')), 'the request')
    cut.end()
    expect((await work).rows[0].n).toBe(7)
    expect(await cut.happened).toBeUndefined()
  })
})

describe('a script', () => {
  it('is played in the order of its times, and is plain JSON', async () => {
    const proxy = await start()
    const client = await connect(proxy)
    const script: ScriptedFault[] = [
      { atMs: 150, kind: 'heal' },
      { atMs: 0, kind: 'latency', delayMs: 1 },
      { atMs: 50, kind: 'black-hole', direction: 'toClient' },
    ]
    proxy.inject({ kind: 'heal' }) // whose time is not after the start
    const playing = proxy.play(JSON.parse(JSON.stringify(script)))
    expect(proxy.history.at(-1)).toMatchObject({ fault: 'latency' }) // at once
    await until(() => proxy.history.some(({ fault }) => fault === 'black-hole'), 'the black hole')
    await client.query('select 1')
    const faults = proxy.history.filter(({ event }) => event === 'fault')
    expect(faults.map(({ fault }) => fault)).toEqual(['heal', 'latency', 'black-hole', 'heal'])
    await playing
    const [startedAt = 0, , silentAt = 0, healedAt = 0] = faults.map(({ atMs }) => atMs)
    // Node.js counts a timer from the start of a turn of its event loop, so the timer may be early by most of a turn.
    expect(silentAt - startedAt).toBeGreaterThan(25)
    expect(healedAt - startedAt).toBeGreaterThan(75)
  })

  it('stops when the proxy is closed', async () => {
    const proxy = await start()
    const playing = proxy.play([{ atMs: 600_000, kind: 'reset' }])
    await proxy.close()
    await playing
    expect(proxy.history).toEqual([])
  })

  it.each([
    [{ kind: 'latency', delayMs: -1 }, 'delayMs'],
    [{ kind: 'latency', delayMs: 1, direction: 'up' }, 'direction'],
    [{ kind: 'bandwidth', bytesPerSecond: 0 }, 'bytesPerSecond'],
    [{ kind: 'cut', when: 'never' }, 'when'],
    [{ kind: 'cut', when: 'after', statement: '/(/' }, 'statement'],
    [{ kind: 'cut', when: 'after', nth: 0 }, 'nth'],
    [{ kind: 'cut', when: 'after', times: 1.5 }, 'times'],
    [{ kind: 'cut', when: 'after', how: 'gently' }, 'how'],
    [{ kind: 'earthquake' }, 'kind'],
  ])('with %o is refused', async (fault, field) => {
    const proxy = await start()
    expect(() => proxy.inject(fault as Fault)).toThrow(expect.objectContaining({ field }))
    await expect(proxy.play([{ ...fault, atMs: 0 } as ScriptedFault])).rejects.toThrow(InvalidInputError)
  })
})

describe('history', () => {
  it('tells what happened on which connection', async () => {
    const proxy = await start()
    const client = await connect(proxy)
    await client.query('select 1')
    await client.query('select $1::int', [2])
    await client.end()
    await until(() => proxy.connections === 0, 'the connection to be closed')
    const { history } = proxy
    expect(history.map(({ event, connection, statement }) => [event, connection, statement])).toEqual([
      ['opened', 1, undefined],
      ['statement', 1, 'select 1'],
      ['statement', 1, 'select $1::int'],
      ['closed', 1, undefined],
    ])
    expect(history.map(({ atMs }) => atMs)).toEqual(history.map(({ atMs }) => atMs).toSorted((a, b) => a - b))
  })
})

describe('close', () => {
  it('leaves nothing: no connection on either side, no listener, no promise that waits', async () => {
    const proxy = await PgProxy.start({ url })
    const application_name = freshName()
    const client = await connect(proxy, { application_name })
    const lost = once(client, 'error')
    const hanging = connectSocket(Number(new URL(proxy.url).port), '127.0.0.1').on('error', () => {})
    const hangs = once(hanging, 'close')
    proxy.inject({ kind: 'latency', delayMs: 60_000 })
    proxy.inject({ kind: 'black-hole', direction: 'toServer' })
    const { happened } = proxy.inject({ kind: 'cut', when: 'after' })
    client.query('select 1').catch(() => {})
    await until(() => proxy.history.some(({ event }) => event === 'statement'), 'the request')
    await Promise.all([proxy.close(), proxy.close(), lost, hangs])
    expect(await happened).toBeUndefined()
    expect(proxy.connections).toBe(0)
    await expect(new pg.Client(proxy.url).connect()).rejects.toMatchObject({ code: 'ECONNREFUSED' })
    await until(async () => {
      const { rowCount } = await direct.query('select 1 from pg_stat_activity where application_name = $1', [
        application_name,
      ])
      return viaPgBouncer || rowCount === 0
    }, 'the session to end')
    expect(await proxy.inject({ kind: 'cut', when: 'after' }).happened).toBeUndefined()
  })

  it('resets who does not speak the protocol', async () => {
    const proxy = await start()
    const socket = connectSocket(Number(new URL(proxy.url).port), '127.0.0.1')
    const lost = once(socket, 'error')
    socket.write('GET / HTTP/1.1\r\n\r\n')
    expect((await lost)[0]).toMatchObject({ code: 'ECONNRESET' })
    await until(() => proxy.connections === 0, 'the connection to be closed')
  })
})

it('gives each connection to an owner of its own, where one is given', async () => {
  let closed = 0
  let end: { destroy(): void } | undefined
  const proxy = await PgProxy.start({ url }, (ports, connection) => {
    end = connection
    return {
      // `pg` asks for what it needs in one message, so the word is never in two chunks.
      fromClient: (chunk) =>
        ports.toServer(Buffer.from(chunk.toString('latin1').replace('select 1', 'select 2'), 'latin1')),
      fromServer: (chunk) => ports.toClient(chunk),
      onClose: () => {
        closed++
      },
    }
  })
  onTestFinished(() => proxy.close())
  const client = await connect(proxy)
  expect((await client.query('select 1 as n')).rows).toEqual([{ n: 2 }])
  const lost = once(client, 'error')
  end?.destroy()
  await lost
  await until(() => proxy.connections === 0, 'the connection to be closed')
  expect(closed).toBe(1)
})
