import { randomInt } from 'node:crypto'
import pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { startAnswerCutter } from '../../test/answer-cutter.js'
import { freshName, until, url } from '../../test/database.js'
import { openDatabase, type TestDatabase } from '../../test/open-database.js'
import { CommitOutcomeUnknownError, ConnectionLostError } from '../errors.js'
import { type CutFault, type Injection, PgProxy } from '../testing/index.js'
import { Database } from './database.js'
import { type DibsEvents, onEvent } from './events.js'
import { statement } from './statement.js'

let direct: TestDatabase
let proxy: PgProxy
/** Through the proxy, on a pool of one: a broken connection that went back would be the next one out. */
let database: Database
let table: string

beforeAll(async () => {
  direct = await openDatabase()
  table = `"${direct.schema}".written`
  await direct.pool.query(`create table ${table} (id text primary key)`)
  proxy = await PgProxy.start({ url })
})

beforeEach(() => {
  proxy.inject({ kind: 'heal' })
  const pool = new pg.Pool({ connectionString: proxy.url, max: 1 })
  pool.on('error', () => {})
  database = new Database(pool, { schema: direct.schema, prepared: false })
  return () => pool.end()
})

afterAll(async () => {
  await proxy.close()
  await direct.drop()
})

const write = (id: string) => database.transaction((tx) => tx.query(`insert into ${table} values ($1)`, [id]))

const isWritten = async (id: string): Promise<boolean> =>
  (await direct.pool.query(`select 1 from ${table} where id = $1`, [id])).rows.length === 1

const cutCommit = (when: CutFault['when'], more: Partial<CutFault> = {}): Injection =>
  proxy.inject({ kind: 'cut', when, statement: '/^commit$/', ...more })

async function expectHealthy(): Promise<void> {
  const id = freshName()
  await write(id)
  expect(await isWritten(id)).toBe(true)
  expect(database.pool.totalCount).toBe(1)
  expect(database.pool.waitingCount).toBe(0)
}

describe('a connection that ends in the middle of the answer to COMMIT', () => {
  it.each([
    ['before the server has said that it is done: unknown', 'silent', 0, CommitOutcomeUnknownError, 0],
    ['before that, by an administrator: unknown', 'terminated', 0, CommitOutcomeUnknownError, 0],
    ['after that: done', 'silent', 1, undefined, 1],
    ['after that, by an administrator: done', 'terminated', 1, undefined, 1],
  ] as const)('%s', async (_, how, messages, failure, after) => {
    await using cutter = await startAnswerCutter(url, how)
    const pool = new pg.Pool({ connectionString: cutter.url, max: 1 })
    pool.on('error', () => {})
    const own = new Database(pool, { schema: direct.schema, prepared: false })
    const id = freshName()
    let afterCommits = 0
    const work = own.transaction(async (tx) => {
      await tx.query(`insert into ${table} values ($1)`, [id])
      tx.afterCommit(() => void afterCommits++)
      cutter.cutAfter(messages)
      return 'done'
    })
    if (failure) await expect(work).rejects.toThrow(failure)
    else expect(await work).toBe('done')
    expect([cutter.hasCut, afterCommits, await isWritten(id)]).toEqual([true, after, true])
    expect(await own.transaction(async () => 'healthy')).toBe('healthy')
    await pool.end()
  })
})

describe('a connection cut at COMMIT', () => {
  it('after the server has committed: unknown to the caller, kept by the server, never repeated', async () => {
    const unknown: DibsEvents['dibs:commit.unknown'][] = []
    const stop = onEvent('dibs:commit.unknown', (event) => unknown.push(event))
    const id = freshName()
    let runs = 0
    let afterCommit = false
    const cut = cutCommit('after')
    const error = await database
      .transaction(async (tx) => {
        runs++
        tx.afterCommit(() => {
          afterCommit = true
        })
        await tx.query(`insert into ${table} values ($1)`, [id])
      })
      .catch((reason) => reason)
    stop()
    expect(cut.strikes).toBe(1)
    expect(error).toBeInstanceOf(CommitOutcomeUnknownError)
    expect(error).toMatchObject({
      code: 'DIBS_COMMIT_OUTCOME_UNKNOWN',
      retryable: false,
      statement: 'COMMIT',
    })
    expect(error.cause).toBeInstanceOf(Error)
    expect(unknown).toHaveLength(1)
    expect(runs).toBe(1)
    expect(afterCommit).toBe(false)
    expect(await isWritten(id)).toBe(true)
    await expectHealthy()
  })

  it('before the server sees it: unknown to the caller, undone by the server', async () => {
    const id = freshName()
    const cut = cutCommit('before')
    await expect(write(id)).rejects.toThrow(CommitOutcomeUnknownError)
    expect(cut.strikes).toBe(1)
    expect(await isWritten(id)).toBe(false)
    await expectHealthy()
  })

  it('by a server that dies with a code and a severity that tell nothing: unknown, and here kept', async () => {
    const id = freshName()
    const cut = cutCommit('after', { how: 'panic', severity: 'ПАНИКА' })
    await expect(write(id)).rejects.toThrow(CommitOutcomeUnknownError)
    expect(cut.strikes).toBe(1)
    expect(await isWritten(id)).toBe(true)
    await expectHealthy()
  })

  it('by an administrator while it runs: unknown', async () => {
    const key = randomInt(2 ** 31) // the same suite may run twice at once
    // A trigger that fires at COMMIT and waits there for a lock that this test holds.
    await direct.pool.query(`
      create table "${direct.schema}".gate (id int);
      create function "${direct.schema}".wait() returns trigger language plpgsql as $$
        begin perform pg_advisory_xact_lock(${key}); return null; end $$;
      create constraint trigger wait after insert on "${direct.schema}".gate
        deferrable initially deferred for each row execute function "${direct.schema}".wait()`)
    const holder = await direct.pool.connect()
    await holder.query(`begin; select pg_advisory_xact_lock(${key})`)
    let pid: unknown
    const work = database.transaction(async (tx) => {
      pid = (await tx.query('select pg_backend_pid() as pid')).rows[0]?.pid
      await tx.query(`insert into "${direct.schema}".gate values (1)`)
    })
    const settled = work.catch((reason) => reason)
    await until(async () => {
      const { rows } = await direct.pool.query(
        "select wait_event_type as w from pg_stat_activity where pid = $1 and query ilike 'commit%'",
        [pid],
      )
      return rows[0]?.w === 'Lock'
    }, 'COMMIT to wait for the lock')
    await holder.query('select pg_terminate_backend($1)', [pid])
    expect(await settled).toBeInstanceOf(CommitOutcomeUnknownError)
    await holder.query('rollback')
    holder.release()
    await expectHealthy()
  })

  it('when the server says so itself: 40003 and 08007 are unknown, not transient', async () => {
    for (const code of ['40003', '08007']) {
      const work = database.transaction((tx) => tx.query(`do $$ begin raise sqlstate '${code}'; end $$`))
      await expect(work).rejects.toThrow(CommitOutcomeUnknownError)
    }
    await expectHealthy()
  })
})

describe('a statement that commits by itself', () => {
  const slow = statement('select pg_catalog.pg_sleep(20)::text as "slept"')
  const slowRead = statement('select pg_catalog.pg_sleep(20)::text as "slept"', { readOnly: true })

  async function killWhileRunning(source: typeof slow): Promise<unknown> {
    const settled = database.send(source, []).catch((reason) => reason)
    const pid = await until(async () => {
      const { rows } = await direct.pool.query(
        `select pid from pg_stat_activity where query = $1 and state = 'active'`,
        [source.text],
      )
      return rows[0]?.pid
    }, 'the statement to run')
    await direct.pool.query('select pg_terminate_backend($1)', [pid])
    return settled
  }

  it('and whose answer is lost is unknown too', async () => {
    expect(await killWhileRunning(slow)).toBeInstanceOf(CommitOutcomeUnknownError)
    await expectHealthy()
  })

  it('is unknown also when the error says nothing about a connection', async () => {
    const id = freshName()
    const insert = statement(
      `insert into {schema}.written select $1::text from pg_catalog.pg_sleep(0.3) returning id::text`,
    )
    database.pool.once('acquire', (client) => {
      const stream = Reflect.get(client, 'connection').stream
      setTimeout(
        () => stream.destroy(Object.assign(new Error('bad record mac'), { code: 'EUNHEARDOF' })),
        100,
      )
    })
    await expect(database.send(insert, [id])).rejects.toThrow(CommitOutcomeUnknownError)
    await until(() => isWritten(id), 'the statement to end all the same')
    await expectHealthy()
  })

  it('and is refused is no lost answer', async () => {
    const refused = statement(`select (1 / 0)::text as "n"`)
    await expect(database.send(refused, [])).rejects.toMatchObject({ sqlState: '22012' })
    await expectHealthy()
  })

  it('but changes nothing is a lost connection', async () => {
    expect(await killWhileRunning(slowRead)).toBeInstanceOf(ConnectionLostError)
    await expectHealthy()
  })
})
