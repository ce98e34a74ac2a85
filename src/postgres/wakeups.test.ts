import pg from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { directUrl, until, url, viaPgBouncer } from '../../test/database.js'
import { openDatabase, type TestDatabase } from '../../test/open-database.js'
import { startPostgres } from '../../test/postgres-server.js'
import { onEvent } from './events.js'
import { listenOn } from './listener.js'
import { Wakeups } from './wakeups.js'

let database: TestDatabase
const opened: Wakeups[] = []

beforeAll(async () => {
  database = await openDatabase()
})

afterEach(async () => {
  await Promise.all(opened.splice(0).map((wakeups) => wakeups.close()))
})

afterAll(() => database.drop())

function open(listen: boolean): Wakeups {
  const wakeups = new Wakeups(database, { listen })
  opened.push(wakeups)
  return wakeups
}

/** Counts the wake-ups on a topic. */
function count(wakeups: Wakeups, topic: string): { n: number } {
  const seen = { n: 0 }
  wakeups.subscribe(topic, () => seen.n++)
  return seen
}

async function listeners(): Promise<{ pid: number }[]> {
  const { rows } = await database.pool.query(
    `select pid from pg_stat_activity where query ilike 'listen %' and application_name = $1`,
    [process.env.PGAPPNAME],
  )
  return rows
}

describe('without listening', () => {
  it('wakes those in the same process at once', async () => {
    const wakeups = open(false)
    const woken = count(wakeups, 'jobs')
    wakeups.notify('jobs')
    expect(woken.n).toBe(1)
    expect(await listeners()).toEqual([])
  })

  it('reports a subscriber that throws, and wakes the others', async () => {
    const failed: unknown[] = []
    const stop = onEvent('dibs:subscriber.failed', ({ error }) => failed.push(error))
    const wakeups = open(false)
    const boom = new Error('boom')
    wakeups.subscribe('jobs', () => {
      throw boom
    })
    const other = count(wakeups, 'jobs')
    wakeups.notify('jobs')
    stop()
    expect(other.n).toBe(1)
    expect(failed).toEqual([boom])
  })

  it('does not wake other topics, nor subscribers that have unsubscribed', async () => {
    const wakeups = open(false)
    const other = count(wakeups, 'other')
    const left = { n: 0 }
    wakeups.subscribe('jobs', () => left.n++)()
    wakeups.notify('jobs')
    expect([other.n, left.n]).toEqual([0, 0])
  })
})

describe('notifications', () => {
  it('of one turn share one NOTIFY, and all later ones share the next', async () => {
    const payloads: unknown[] = []
    const watcher = new pg.Client(directUrl)
    await watcher.connect()
    watcher.on('notification', ({ payload }) => payloads.push(JSON.parse(payload ?? '')))
    await watcher.query(`listen "dibs_${database.schema}"`)
    const wakeups = open(false)
    for (let n = 0; n < 100; n++) wakeups.notify(`topic ${n % 3}`)
    await until(async () => {
      await watcher.query('select 1')
      return payloads.length > 0
    }, 'the notification')
    expect(payloads).toEqual([['topic 0', 'topic 1', 'topic 2']])

    // While one waits for the only client, what comes up gathers.
    const narrow = new pg.Pool({ connectionString: url, max: 1 })
    const held = await narrow.connect()
    const { Database } = await import('./database.js')
    const later = new Wakeups(new Database(narrow, { schema: database.schema, prepared: false }), {
      listen: false,
    })
    for (let n = 0; n < 50; n++) {
      later.notify(`later ${n}`)
      await new Promise((resolve) => setImmediate(resolve))
    }
    held.release()
    await later.close()
    await narrow.end()
    await watcher.query('select 1')
    const told = payloads.slice(1).flat()
    expect(new Set(told)).toEqual(new Set(Array.from({ length: 50 }, (_, n) => `later ${n}`)))
    expect(payloads).toHaveLength(3)
    await wakeups.close()
    await watcher.end()
  })

  it('that cannot be sent are told by an event and harm nobody', async () => {
    const failed: unknown[] = []
    const stop = onEvent('dibs:wakeup.failed', ({ error }) => failed.push(error))
    const { Database } = await import('./database.js')
    const nowhere = new pg.Pool({ connectionString: 'postgres://127.0.0.1:1/x' })
    const wakeups = new Wakeups(new Database(nowhere, { schema: 'nowhere', prepared: false }), {
      listen: false,
    })
    const local = count(wakeups, 'jobs')
    wakeups.notify('jobs')
    await wakeups.close()
    stop()
    expect(local.n).toBe(1)
    expect(failed).toHaveLength(1)
    await nowhere.end()
  })
})

// A pooler in transaction mode hands LISTEN to a connection that the next statement does not have.
describe.skipIf(viaPgBouncer)('listening (not possible through PgBouncer)', () => {
  it('wakes another process, here another instance', async () => {
    const [here, there] = [open(true), open(true)]
    const seen = count(there, 'jobs')
    await until(() => seen.n > 0, 'the wake-up that follows connecting')
    const before = seen.n
    here.notify('jobs')
    await until(() => seen.n > before, 'the notification')
  })

  it('takes one connection for all instances, and none after they are closed', async () => {
    const three = [open(true), open(true), open(true)]
    const seen = three.map((wakeups) => count(wakeups, 'jobs'))
    await until(() => seen.every(({ n }) => n > 0), 'all to be connected')
    expect(await listeners()).toHaveLength(1)
    await Promise.all(opened.splice(0).map((wakeups) => wakeups.close()))
    await until(async () => (await listeners()).length === 0, 'the connection to close')
  })

  it('comes back after its connection was killed, and wakes everyone for what was missed', async () => {
    const lost: number[] = []
    const stop = onEvent('dibs:listener.lost', ({ retryInMs }) => lost.push(retryInMs))
    const wakeups = open(true)
    const seen = count(wakeups, 'jobs')
    await until(() => seen.n > 0, 'the first connection')
    for (let round = 1; round <= 3; round++) {
      const before = seen.n
      const [first] = await until(async () => {
        const found = await listeners()
        return found.length === 1 && found
      }, 'the listening connection')
      await database.pool.query('select pg_terminate_backend($1)', [first?.pid])
      await until(() => seen.n > before, 'the wake-up after reconnecting')
      expect(lost).toHaveLength(round)
    }
    stop()
    const before = seen.n
    open(false).notify('jobs')
    await until(() => seen.n > before, 'a notification over the new connection')
  })

  it('wakes everyone when there are too many topics to name', async () => {
    const there = open(true)
    const seen = count(there, 'never notified')
    await until(() => seen.n > 0, 'the first connection')
    const before = seen.n
    const here = open(false)
    for (let n = 0; n < 2_000; n++) here.notify(`topic ${n}`)
    await until(() => seen.n > before, 'the wake-up for all')
  })

  it('backs off from a server that refuses to listen, as a standby does', async () => {
    const standby = await startPostgres({ standby: true })
    const pool = new pg.Pool({ connectionString: standby.url })
    const waits: number[] = []
    const stop = listenOn(pool, 'dibs_x', {
      onNotify() {},
      onConnected() {},
      onLost: (_, retryInMs) => waits.push(retryInMs),
    })
    await until(() => waits.some((ms) => ms > 300), 'a longer pause') // without backoff it stays below 150
    await stop()
    await pool.end()
    await standby.stop()
  })

  it('tries again when not even a client can be made', async () => {
    const pool = new pg.Pool({
      connectionString: `${directUrl}?sslmode=verify-full&sslrootcert=/nowhere.pem`,
    })
    const waits: unknown[] = []
    const stop = listenOn(pool, 'dibs_x', {
      onNotify() {},
      onConnected() {},
      onLost: (error) => waits.push(error),
    })
    await until(() => waits.length >= 2, 'another try')
    expect(`${waits[0]}`).toContain('/nowhere.pem')
    await stop()
    await pool.end()
  })

  it('closes while it is still connecting', async () => {
    const wakeups = open(true)
    count(wakeups, 'jobs')
    await wakeups.close()
    await until(async () => (await listeners()).length === 0, 'the connection to close')
  })
})
