import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import pg from 'pg'
import postgres from 'postgres'
import { afterAll, beforeAll, describe, expect, it, onTestFinished } from 'vitest'
import { freshName, until, url, viaPgBouncer, withPool } from '../../../test/database.js'
import { PgProxy } from './pg-proxy.js'

// Without faults nobody notices that there is a proxy.

let proxy: PgProxy
const table = freshName()

beforeAll(async () => {
  proxy = await PgProxy.start({ url })
  await withPool((pool) => pool.query(`create table ${table} (id int)`))
})

afterAll(async () => {
  await proxy.close()
  await withPool((pool) => pool.query(`drop table ${table}`))
})

async function connect(config: pg.ClientConfig = {}): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: proxy.url, ...config })
  client.on('error', () => {})
  await client.connect()
  onTestFinished(() => client.end())
  return client
}

/** The listeners that `pg` calls for messages. Each test defines the reply to some of them. */
function exchange(client: pg.Client, steps: Record<string, (to: pg.Connection, message: never) => void>) {
  const connection: pg.Connection = Reflect.get(client, 'connection')
  const { submit, ...handlers } = steps
  return new Promise<void>((resolve, reject) => {
    const names = [
      'handleRowDescription',
      'handleDataRow',
      'handlePortalSuspended',
      'handleCommandComplete',
      'handleCopyInResponse',
      'handleCopyData',
    ]
    const handle = (name: string) => [name, (message: never) => handlers[name]?.(connection, message)]
    client.query({
      submit: () => submit?.(connection, undefined as never),
      handleError: reject,
      handleReadyForQuery: () => resolve(),
      ...Object.fromEntries(names.map(handle)),
    } as never)
  })
}

describe('pg', () => {
  it('sends simple and extended queries, and sees errors', async () => {
    const client = await connect()
    expect((await client.query('select 1 as a; select 2 as b')) as unknown).toMatchObject([
      { rows: [{ a: 1 }] },
      { rows: [{ b: 2 }] },
    ])
    expect((await client.query('select $1::text as it', ['é'])).rows).toEqual([{ it: 'é' }])
    await expect(client.query('select 1 / $1::int', [0])).rejects.toMatchObject({ code: '22012' })
    await expect(client.query('select from nowhere_at_all')).rejects.toMatchObject({ code: '42P01' })
    expect((await client.query('')).rows).toEqual([])
    expect((await client.query('select 3 as c')).rows).toEqual([{ c: 3 }])
  })

  it.skipIf(viaPgBouncer)('prepares by name', async () => {
    const client = await connect()
    for (let n = 0; n < 3; n++) {
      const { rows } = await client.query({ name: 'twice', text: 'select $1::int * 2 as n', values: [n] })
      expect(rows).toEqual([{ n: n * 2 }])
    }
    const said = proxy.history.filter(({ statement }) => statement === 'select $1::int * 2 as n')
    expect(said).toHaveLength(3) // though the text was sent once
  })

  it('pipelines', async () => {
    const client = await connect({ pipeline: true } as pg.ClientConfig)
    const answers = await Promise.all([
      client.query('select 1 as n'),
      client.query('select $1::int as n', [2]),
      client.query('select 1 / 0').catch(({ code }) => ({ rows: [{ n: code }] })),
      client.query('select 4 as n'),
    ])
    expect(answers.map(({ rows }) => rows[0].n)).toEqual([1, 2, '22012', 4])
  })

  it('copies in and out', async () => {
    const client = await connect()
    await client.query(`truncate ${table}`)
    await exchange(client, {
      submit: (to) => to.query(`copy ${table} from stdin`),
      handleCopyInResponse: (to) => {
        for (let n = 0; n < 1_000; n++) Reflect.get(to, 'sendCopyFromChunk').call(to, Buffer.from(`${n}\n`))
        Reflect.get(to, 'endCopyFrom').call(to)
      },
    })
    let copied = ''
    await exchange(client, {
      submit: (to) => to.query(`copy (select id from ${table} order by id) to stdout`),
      handleCopyData: (_, { chunk }: { chunk: Buffer }) => {
        copied += chunk
      },
    })
    expect(copied).toBe(Array.from({ length: 1_000 }, (_, n) => `${n}\n`).join(''))
    expect((await client.query('select 1 as n')).rows).toEqual([{ n: 1 }])
  })

  it('copies in with the extended protocol, well and badly, and stays in step', async () => {
    const client = await connect()
    await client.query(`truncate ${table}`)
    const copy = (data: string) =>
      exchange(client, {
        submit: (to) => {
          const extended = to as unknown as Record<string, (...args: unknown[]) => void>
          extended.parse?.({ text: `copy ${table} from stdin` })
          extended.bind?.({})
          extended.execute?.({})
          to.sync()
        },
        handleCopyInResponse: (to) => {
          Reflect.get(to, 'sendCopyFromChunk').call(to, Buffer.from(data))
          Reflect.get(to, 'endCopyFrom').call(to)
          to.sync()
        },
      })
    await copy('1\n2\n')
    await expect(copy('not a number\n')).rejects.toMatchObject({ code: '22P02' })
    for (let n = 0; n < 3; n++)
      expect((await client.query(`select count(*)::int as n from ${table}`)).rows).toEqual([{ n: 2 }])
  })

  it('reads a cursor row by row, flushing in place of ending the exchange', async () => {
    const client = await connect()
    const rows: string[] = []
    const extended = (to: pg.Connection) => to as unknown as Record<string, (...args: unknown[]) => void>
    const more = (to: pg.Connection): void => {
      extended(to).execute?.({ rows: 2 })
      to.flush()
    }
    await exchange(client, {
      submit: (to) => {
        extended(to).parse?.({ text: 'select n::text from generate_series(1, 5) n' })
        extended(to).bind?.({})
        extended(to).describe?.({ type: 'P', name: '' })
        to.flush()
      },
      handleRowDescription: more,
      handleDataRow: (_, { fields }: { fields: string[] }) => void rows.push(`${fields[0]}`),
      handlePortalSuspended: more,
      handleCommandComplete: (to) => to.sync(),
    })
    expect(rows).toEqual(['1', '2', '3', '4', '5'])
    expect((await client.query('select 1 as n')).rows).toEqual([{ n: 1 }])
  })

  it('has a large result and a large value, while it reads slowly, without filling our memory', async () => {
    const client = await connect()
    const { stream }: pg.Connection = Reflect.get(client, 'connection')
    const many = "select repeat('x', 1000000) as big from generate_series(1, 100)"
    const result = client.query(many)
    stream.pause()
    const before = process.memoryUsage().external
    let held = 0
    // Held up for as long as a server would need to hand over all of it to someone who takes it.
    const isHeldUp = async (pool: pg.Pool): Promise<boolean> => {
      const { rows } = await pool.query(
        'select 1 from pg_stat_activity where query = $1 and wait_event = $2',
        [many, 'ClientWrite'],
      )
      held = rows.length === 0 ? 0 : held + 1
      return held > 20
    }
    await withPool((pool) => until(() => isHeldUp(pool), 'the server to be held up', 30_000))
    expect(process.memoryUsage().external - before).toBeLessThan(40_000_000)
    stream.resume()
    expect((await result).rows.reduce((sum, { big }) => sum + big.length, 0)).toBe(100_000_000)
    expect((await client.query('select length($1) as n', ['y'.repeat(20_000_000)])).rows).toEqual([
      { n: 20_000_000 },
    ])
  })

  it.skipIf(viaPgBouncer)('hears notifications', async () => {
    const client = await connect()
    await client.query(`listen ${table}`)
    const heard = once(client, 'notification')
    await withPool((pool) => pool.query(`notify ${table}, 'hello'`))
    expect((await heard)[0]).toMatchObject({ payload: 'hello' })
  })
})

describe('postgres.js', () => {
  const isRunning = (text: string) =>
    withPool(async (pool) => {
      const { rows } = await pool.query(
        "select from pg_stat_activity where state = 'active' and pid <> pg_backend_pid() and strpos(query, $1) > 0",
        [text],
      )
      return rows.length > 0
    })

  const open = (options: postgres.Options<Record<string, never>> = {}) => {
    const sql = postgres(proxy.url, { max: 1, prepare: !viaPgBouncer, onnotice() {}, ...options })
    onTestFinished(() => sql.end())
    return sql
  }

  it('pipelines what is asked at once, in a transaction and out of it', async () => {
    const sql = open()
    const all = Array.from({ length: 50 }, (_, n) => n)
    const answers = await Promise.all(all.map((n) => sql`select ${n}::int as n`))
    expect(answers.map(([row]) => row?.n)).toEqual(all)
    const inside = await sql.begin((tx) => Promise.all(all.map((n) => tx`select ${n}::int as n`)))
    expect(inside.map(([row]) => row?.n)).toEqual(all)
  })

  it('reads a cursor', async () => {
    const seen: number[] = []
    for await (const rows of open()`select n from generate_series(1, 7) n`.cursor(3))
      seen.push(...rows.map(({ n }) => n))
    expect(seen).toEqual([1, 2, 3, 4, 5, 6, 7])
  })

  it('cancels through the proxy', async () => {
    const sql = open()
    const slow = sql.unsafe(`select pg_sleep(60) as ${table}`)
    const settled = slow.catch((reason) => reason)
    // Asked for once, and not too early: of requests one after the other, a late one was seen to end the connection itself.
    await until(() => isRunning(`pg_sleep(60) as ${table}`), 'the query')
    slow.cancel()
    expect(await settled).toMatchObject({ code: '57014' })
  })

  it('asks for TLS, is refused by the proxy, and goes on in the clear', async () => {
    const [row] = await open({ ssl: 'prefer' })`select 1 as n`
    expect(row).toEqual({ n: 1 })
  })
})

describe('the URL', () => {
  it('is the same with our host and port', async () => {
    const given = 'postgres://me:p%40ss@db.example:6543/shop?application_name=x&sslmode=require&sslrootcert=a'
    await using refusing = await PgProxy.start({ url: given })
    const { port } = new URL(refusing.url)
    expect(refusing.url).toBe(`postgres://me:p%40ss@127.0.0.1:${port}/shop?application_name=x`)
    await using passing = await PgProxy.start({ url: given, tls: 'pass' })
    expect(passing.url).toContain('&sslmode=require&sslrootcert=a')
  })

  it('may name a server that is not there: the client is reset', async () => {
    const nobody = createServer()
    await once(nobody.listen(0, '127.0.0.1'), 'listening')
    const { port } = nobody.address() as AddressInfo
    nobody.close()
    await using to = await PgProxy.start({ url: `postgres://me@127.0.0.1:${port}/shop` })
    const client = new pg.Client(to.url)
    await expect(client.connect()).rejects.toThrow(/ECONNRESET|terminated/)
    await until(() => to.connections === 0, 'the connection to be closed')
  })
})
