import { Writable } from 'node:stream'
import { inspect } from 'node:util'
import pg from 'pg'
import { pino } from 'pino'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { requireComponent } from '../test/components.js'
import {
  createRole,
  directUrl,
  dropSchema,
  freshName,
  throughPool,
  url,
  viaPgBouncer,
  wayIn,
  withPool,
} from '../test/database.js'
import { deferred } from '../test/deferred.js'
import { postgres13 } from '../test/postgres-installations.js'
import { type StartOptions, startPostgres } from '../test/postgres-server.js'
import { Dibs } from './dibs.js'
import {
  ClosedError,
  ConflictError,
  ConnectionLostError,
  InvalidInputError,
  SchemaVersionError,
  SetupError,
} from './errors.js'
import * as face from './index.js'
import { migrations } from './postgres/migrations/generated/migrations.js'
import { countTraffic } from './testing/count-traffic.js'
import { PgProxy } from './testing/proxy/pg-proxy.js'

afterEach(() => vi.unstubAllEnvs())

it('gives out no class of what only an instance can make', () => {
  for (const name of ['Kv', 'Quota', 'Hold', 'RateLimit', 'Claims', 'Operation'])
    expect(face).not.toHaveProperty(name)
})

const elsewhere = (change: (target: URL) => void): string => {
  const target = new URL(directUrl)
  change(target)
  return target.href
}

/** What `Dibs.open` fails with; the clock shows that it does so within seconds. */
async function openFailure(options: Parameters<typeof Dibs.open>[0]): Promise<unknown> {
  const startedAt = performance.now()
  const error = await Dibs.open(options).then(
    async (dibs) => {
      await dibs.close()
      throw new Error('it opened')
    },
    (reason) => reason,
  )
  expect(performance.now() - startedAt).toBeLessThan(12_000)
  return error
}

describe('Dibs.open', () => {
  it('makes its schema, tells the time and closes', async () => {
    const schema = freshName()
    const dibs = await Dibs.open({ ...wayIn, schema })
    expect(dibs.url).toBe(url)
    expect(dibs.schema).toBe(schema)
    expect(Math.abs((await dibs.now()).getTime() - Date.now())).toBeLessThan(5_000)
    await dibs.close()
    await dibs.close() // twice is fine
    await expect(dibs.now()).rejects.toThrow(ClosedError)
    await expect(dibs.transaction(async () => 1)).rejects.toThrow(ClosedError)
    await dropSchema(schema)
  })

  it('shows its url to those who ask, and not in a log', async () => {
    const schema = freshName()
    const target = new URL(url)
    target.password ||= 'hunter2' // PgBouncer does not ask for it
    await using dibs = await Dibs.open({ ...wayIn, url: target.href, schema })
    expect(dibs.url).toContain(target.password)
    expect(inspect(dibs, { depth: 5 })).not.toContain(target.password)
    expect(JSON.stringify(dibs)).not.toContain(target.password)
    await dropSchema(schema)
  })

  it('takes DATABASE_URL when nothing is given', async () => {
    const schema = freshName()
    vi.stubEnv('DATABASE_URL', url)
    await using dibs = await Dibs.open({ schema, prepared: false })
    expect(dibs.url).toBe(url)
    await dropSchema(schema)
  })

  it('uses the pool it is given, and leaves it open', async () => {
    const schema = freshName()
    await withPool(async (pool) => {
      const dibs = await Dibs.open({ ...throughPool, pool, schema })
      expect(dibs.pool).toBe(pool)
      await dibs.now()
      const listeners = pool.listenerCount('error')
      await dibs.close()
      expect(pool.listenerCount('error')).toBe(listeners - 1)
      expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    })
    await dropSchema(schema)
  })

  it('opens two schemas of one database side by side', async () => {
    const names = [freshName(), freshName()]
    const both = await Promise.all(names.map((schema) => Dibs.open({ ...wayIn, schema })))
    await Promise.all(both.map((dibs) => dibs.now()))
    await Promise.all(both.map((dibs) => dibs.close()))
    await Promise.all(names.map(dropSchema))
  })

  it('with migrate: "check" refuses a schema that is not there, with "off" asks nothing', async () => {
    const schema = freshName()
    expect(await openFailure({ ...wayIn, schema, migrate: 'check' })).toBeInstanceOf(SchemaVersionError)
    await using careless = await Dibs.open({ ...wayIn, schema, migrate: 'off' })
    await expect(careless.now()).rejects.toMatchObject({ sqlState: '3F000' })
    await (await Dibs.open({ ...wayIn, schema })).close()
    await (await Dibs.open({ ...wayIn, schema, migrate: 'check' })).close()
    await dropSchema(schema)
  })

  it.each(['its own pool', 'a given pool'])(
    'waits in close() for what still runs, afterCommit included: %s',
    async (whose) => {
      const schema = freshName()
      await withPool(async (pool) => {
        const dibs = await Dibs.open(
          whose === 'a given pool' ? { ...throughPool, pool, schema } : { ...wayIn, schema },
        )
        const steps: string[] = []
        const inside = deferred()
        const mayCommit = deferred()
        const committed = deferred()
        const mayEnd = deferred()
        const work = dibs.transaction(async (tx) => {
          inside.resolve()
          await mayCommit.promise
          await tx.query('select 1')
          tx.afterCommit(async () => {
            committed.resolve()
            await mayEnd.promise
            steps.push('after commit')
          })
        })
        await inside.promise
        const closing = dibs.close().then(() => steps.push('closed'))
        await expect(dibs.now()).rejects.toThrow(ClosedError)
        mayCommit.resolve()
        await committed.promise
        await pool.query('select 1') // time for a close that does not wait
        steps.push('still open')
        mayEnd.resolve()
        await work
        await closing
        expect(steps).toEqual(['still open', 'after commit', 'closed'])
      })
      await dropSchema(schema)
    },
  )

  it('closes an instance whose own pool was ended by its user', async () => {
    const schema = freshName()
    const dibs = await Dibs.open({ ...wayIn, schema })
    await dibs.pool.end()
    await dibs.close()
    await dropSchema(schema)
  })

  it('leaves a given pool as it was when it fails to open', async () => {
    await withPool(async (pool) => {
      const listeners = pool.listenerCount('error')
      expect(
        await openFailure({ ...throughPool, pool, schema: freshName(), migrate: 'check' }),
      ).toBeInstanceOf(SchemaVersionError)
      expect(pool.listenerCount('error')).toBe(listeners)
      expect(pool.idleCount).toBe(pool.totalCount)
      expect((await pool.query('select 1 as one')).rows).toEqual([{ one: 1 }])
    })
  })

  it('costs two round trips to learn about a server that is up to date', async () => {
    const schema = freshName()
    await (await Dibs.open({ ...wayIn, schema })).close()
    await withPool(async (pool) => {
      await pool.query('select 1')
      const { value, roundTrips } = await countTraffic(pool, () =>
        Dibs.open({ ...throughPool, pool, schema }),
      )
      expect(roundTrips).toBe(2)
      await value.close()
    })
    await dropSchema(schema)
  })
})

describe('what is wrong is told clearly, at once, and leaves nothing behind', () => {
  it.each([
    ['', 'is empty'],
    ['localhost', 'is not a URL'],
    ['mysql://localhost/x', 'must start with postgres://, not mysql://'],
    [5 as never, 'must be a string'],
  ])('url %j', async (given, message) => {
    vi.stubEnv('DATABASE_URL', undefined)
    const error = await openFailure({ url: given })
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error).toMatchObject({ field: 'url', message: expect.stringContaining(message) })
  })

  it('does not repeat a password in its message', async () => {
    const secret = 'hunter2'
    for (const given of [
      `nonsense ${secret}`,
      `postgres://user:${secret}@[/x`,
      `postgres://user:a@${secret}#b@127.0.0.1:1/x`,
    ]) {
      const error = await openFailure({ url: given })
      expect(inspect(error, { depth: 5, showHidden: true })).not.toContain(secret)
    }
  })

  it.each(['dibs"; drop schema public cascade; --', 'a b', '', 'pg_x'])('schema %j', async (schema) => {
    expect(await openFailure({ url, schema })).toMatchObject({ name: 'InvalidInputError', field: 'schema' })
  })

  it.each([
    [null, 'options', 'must be an object'],
    ['postgres://localhost/x', 'options', 'must be an object, not a string'],
    [
      { url, shcema: 'x' },
      'shcema',
      'Unknown option "shcema". Did you mean schema? Expected one of: url, pool',
    ],
    [{ url, listen: 'no' }, 'listen', 'must be true or false'],
    [{ url, logger: 'x' }, 'logger', 'must be false, or have the methods'],
    [{ url, logger: true }, 'logger', 'not a boolean'],
    [{ pool: new pg.Pool(), url }, 'pool', 'are two ways to say'],
    [{ url, schema: null }, 'schema', 'not null'],
    [{ url: null }, 'url', 'not null'],
    [{ embedded: null }, 'embedded', 'not null'],
    [{ embedded: 0 }, 'embedded', 'not a number'],
    [{ url, logger: null }, 'logger', 'not null'],
    [{ url, logger: 0 }, 'logger', 'not a number'],
    [{ url, migrate: null }, 'migrate', 'not null'],
    [{ url, listen: null }, 'listen', 'not null'],
    [{ url, prepared: 0 }, 'prepared', 'not 0'],
  ])('options %j', async (options, field, message) => {
    const error = await openFailure(options as never)
    expect(error).toMatchObject({
      name: 'InvalidInputError',
      field,
      message: expect.stringContaining(message),
    })
  })

  it.each([
    ['null', null],
    ['0', 0],
    ['NaN', Number.NaN],
    ['an empty string', ''],
    ['a string', 'postgres://localhost/x'],
    ['false', false],
    ['true', true],
    ['a plain object', {}],
    ['an object with connect alone', { connect: () => {}, options: {} }],
    ['a client', new pg.Client()],
    ['a function', () => {}],
  ])('a pool that is %s: no embedded server is started in its place', async (_, pool) => {
    vi.stubEnv('DATABASE_URL', undefined)
    expect(await openFailure({ pool: pool as never })).toMatchObject({
      name: 'InvalidInputError',
      field: 'pool',
      message: expect.stringContaining('must be a Pool of pg'),
    })
  })

  it('options that cannot be written as JSON', async () => {
    for (const options of [
      { url, migrate: 1n },
      { url, schema: 1n },
    ]) {
      expect(await openFailure(options as never)).toBeInstanceOf(InvalidInputError)
    }
  })

  it('an ended pool, and one of native clients of an older pg', async () => {
    const ended = new pg.Pool({ connectionString: url })
    await ended.end()
    expect(await openFailure({ pool: ended })).toBeInstanceOf(ClosedError)
    await withPool(async (pool) => {
      // As with a native client: neither the status nor the messages of the server can be read.
      pool.on('connect', (client) => {
        Object.assign(client, { getTransactionStatus: undefined })
        Object.assign(Reflect.get(client, 'connection'), { prependListener: undefined })
      })
      expect(await openFailure({ pool })).toMatchObject({
        message: expect.stringContaining('Update pg to 8.21 or newer'),
      })
    })
  })

  it('a certificate that is not there', async () => {
    const error = await openFailure({ url: `${directUrl}?sslrootcert=/nowhere.pem&sslmode=verify-full` })
    expect(error).toBeInstanceOf(SetupError)
    expect(error).toMatchObject({ message: expect.stringContaining('/nowhere.pem') })
  })

  it('migrate "maybe"', async () => {
    expect(await openFailure({ url, migrate: 'maybe' as never })).toMatchObject({ field: 'migrate' })
  })

  it('a port where nobody listens', async () => {
    const error = await openFailure({ url: elsewhere((target) => (target.port = '1')) })
    expect(error).toBeInstanceOf(ConnectionLostError)
    expect(error).toMatchObject({
      message: expect.stringMatching(/Cannot connect to postgres:\/\/.*127\.0\.0\.1:1\/.*ECONNREFUSED/),
    })
  })

  // These two go straight to the server anyway.
  it.skipIf(viaPgBouncer)('a server that accepts and never answers', async () => {
    await using proxy = await PgProxy.start({ url: directUrl })
    proxy.inject({ kind: 'black-hole' })
    const error = await openFailure({ url: proxy.url })
    expect(error).toBeInstanceOf(ConnectionLostError)
  })

  it.skipIf(viaPgBouncer)('a given pool that would wait for ever', async () => {
    await using proxy = await PgProxy.start({ url: directUrl })
    proxy.inject({ kind: 'black-hole' })
    const pool = new pg.Pool({ connectionString: proxy.url, connectionTimeoutMillis: 0 })
    const error = await openFailure({ pool })
    expect(error).toBeInstanceOf(ConnectionLostError)
    await proxy.close()
    await pool.end()
  })

  it.skipIf(viaPgBouncer)(
    'a database that does not exist, and a user (PgBouncer answers in its own words)',
    async () => {
      for (const target of [
        elsewhere((to) => (to.pathname = '/nowhere')),
        elsewhere((to) => (to.username = 'nobody_here')),
      ]) {
        const error = await openFailure({ url: target })
        expect(error).toBeInstanceOf(SetupError)
        expect(error).toMatchObject({ message: expect.stringContaining('refuses the connection') })
      }
    },
  )

  it('a schema that cannot be made', async () => {
    const role = freshName('poor')
    const error = await openFailure({ url: await createRole(role), schema: freshName() })
    expect(error).toBeInstanceOf(SetupError)
    expect(error).toMatchObject({ message: expect.stringContaining('as a user with CREATE on the database') })
    await withPool((pool) => pool.query(`drop role ${role}`))
  })

  // Servers of their own: there PgBouncer has no part.
  it.skipIf(viaPgBouncer)('a standby', () =>
    expectRefused({ standby: true }, 'is a read-only standby. Connect to the primary.'),
  )

  const hasOld = requireComponent('PostgreSQL 13', postgres13, 'the refusal of a server that is too old')
  it.skipIf(viaPgBouncer || !hasOld)('a server older than 14, a real PostgreSQL 13', () =>
    expectRefused({ binaries: postgres13 }, 'is PostgreSQL 13. Dibs needs 14 or newer.'),
  )

  async function expectRefused(options: StartOptions, message: string): Promise<void> {
    const server = await startPostgres(options)
    try {
      const error = await openFailure({ url: server.url })
      expect(error).toBeInstanceOf(SetupError)
      expect(error).toMatchObject({ message: expect.stringContaining(message) })
    } finally {
      await server.stop()
    }
  }
})

it('writes its events with pino, those of its own schema alone', async () => {
  const lines: Record<string, unknown>[] = []
  const sink = new Writable({
    write(chunk, _, done) {
      lines.push(JSON.parse(chunk))
      done()
    },
  })
  const names = [freshName(), freshName()]
  const dibs = await Dibs.open({ ...wayIn, schema: names[0], logger: pino({ level: 'debug' }, sink) })
  const other = await Dibs.open({ ...wayIn, schema: names[1] })
  const conflictOnce = (on: Dibs) =>
    on.transaction(async (tx) => {
      if (tx.attempt === 1) throw new ConflictError({ subject: 'order 7' })
    })
  await conflictOnce(dibs)
  await conflictOnce(other)
  await dibs.close()
  await conflictOnce(other)
  await other.close()
  expect(lines.map(({ event, schema }) => [event, schema])).toEqual([
    ...migrations.map(() => ['dibs:migration.applied', names[0]]),
    ['dibs:transaction.retried', names[0]],
  ])
  expect(lines.at(-1)).toMatchObject({
    level: 20,
    attempt: 1,
    err: { message: expect.stringContaining('order 7'), code: 'DIBS_CONFLICT' },
  })
  await Promise.all(names.map(dropSchema))
})
