import { connect } from 'node:net'
import pg from 'pg'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { url } from '../../test/database.js'
import {
  BusyError,
  CommitOutcomeUnknownError,
  ConflictError,
  ConnectionLostError,
  ConstraintViolationError,
  DatabaseError,
  StatementTimeoutError,
} from '../errors.js'
import { readFault, translateError } from './fault.js'

const pool = new pg.Pool({ connectionString: url, max: 1 })
beforeAll(() => void pool.on('error', () => {}))
afterAll(() => pool.end())

const failureOf = (text: string): Promise<unknown> =>
  pool.query(text).then(
    () => {
      throw new Error(`did not fail: ${text}`)
    },
    (error) => error,
  )

describe('what the server answers', () => {
  it.each([
    ['40001', 'conflict', ConflictError],
    ['40P01', 'conflict', ConflictError],
    ['40003', 'unknown outcome', CommitOutcomeUnknownError],
    ['08007', 'unknown outcome', CommitOutcomeUnknownError],
    ['40002', 'constraint', ConstraintViolationError],
    ['57014', 'timeout', StatementTimeoutError],
    ['55P03', 'timeout', StatementTimeoutError],
    ['53300', 'retryable', BusyError],
    ['53100', 'retryable', BusyError],
    ['23000', 'constraint', ConstraintViolationError],
    // With severity ERROR: of another server, which this one talks to.
    ['08006', 'other', DatabaseError],
    ['57P01', 'other', DatabaseError],
    ['P0001', 'other', DatabaseError],
    ['22P05', 'other', DatabaseError],
    ['ZZ999', 'other', DatabaseError],
  ])('%s is %s', async (sqlState, kind, type) => {
    const error = await failureOf(
      `do $$ begin raise sqlstate '${sqlState}' using message = 'because'; end $$`,
    )
    expect(readFault(error)).toMatchObject({ kind, sqlState, message: 'because' })
    const translated = translateError(error)
    expect(translated).toBeInstanceOf(type)
    expect(translated).toHaveProperty('cause', error)
    expect(translateError(translated)).toBe(translated)
  })

  it.each([
    ['insert into pg_temp.t values (1), (1)', { kind: 'unique', constraint: 't_pkey', table: 't' }],
    ['insert into pg_temp.t values (null)', { kind: 'not null', table: 't', column: 'id' }],
    ['insert into pg_temp.t values (-1)', { kind: 'check', constraint: 't_id_check', table: 't' }],
    ['insert into pg_temp.c values (5)', { kind: 'foreign key', constraint: 'c_id_fkey', table: 'c' }],
    ['insert into pg_temp.x values (1), (1)', { kind: 'exclusion', constraint: 'x_id_excl', table: 'x' }],
  ])('%s', async (text, expected) => {
    const client = await pool.connect()
    try {
      await client.query(`begin; create temp table t (id int primary key check (id > 0)) on commit drop;
        create temp table c (id int references t) on commit drop;
        create temp table x (id int, exclude (id with =)) on commit drop`)
      const error = translateError(await client.query(text).catch((reason) => reason))
      expect(error).toBeInstanceOf(ConstraintViolationError)
      expect(error).toMatchObject(expected)
    } finally {
      await client.query('rollback')
      client.release()
    }
  })

  it('the end of the session', async () => {
    const error = await failureOf('select pg_terminate_backend(pg_backend_pid())')
    expect(readFault(error)).toMatchObject({ kind: 'connection', fatal: true })
    expect(translateError(error)).toBeInstanceOf(ConnectionLostError)
  })

  it.each(['08001', '08006', '08P01', '57P01', '57P02', '57P03', '57P05', '25P03', '25P04'])(
    '%s as the last word of a server',
    (code) => {
      for (const severity of ['FATAL', 'ВАЖНО']) {
        expect(readFault({ severity, code, message: 'because' })).toMatchObject({
          kind: 'connection',
          fatal: true,
        })
      }
    },
  )

  it('a statement that ran into its timeout', async () => {
    expect(translateError(await failureOf('set statement_timeout = 20; select pg_sleep(10)'))).toBeInstanceOf(
      StatementTimeoutError,
    )
    await pool.query('reset statement_timeout')
  })
})

describe('what never reached a server', () => {
  it('a port where nobody listens', async () => {
    const error = await new pg.Client('postgres://127.0.0.1:1/x').connect().catch((reason) => reason)
    expect(readFault(error)).toMatchObject({ kind: 'connection', fatal: true })
    expect(translateError(error)).toBeInstanceOf(ConnectionLostError)
  })

  it('a host that does not exist', async () => {
    const error = await new pg.Client('postgres://nowhere.invalid/x').connect().catch((reason) => reason)
    expect(readFault(error)?.kind).toBe('connection')
  })

  it('a socket that is not there', async () => {
    const error = await new pg.Client('postgres://%2Fnowhere/x').connect().catch((reason) => reason)
    expect(readFault(error)?.kind).toBe('connection')
  })

  it('a client that was closed, and one whose answer did not come in time', async () => {
    const client = new pg.Client(url)
    await client.connect()
    await client.end()
    const closed = await client.query('select 1').catch((reason) => reason)
    expect(readFault(closed)?.kind).toBe('connection')

    const late = new pg.Client({ connectionString: url, query_timeout: 20 })
    late.on('error', () => {})
    await late.connect()
    const timeout = await late.query('select pg_sleep(1)').catch((reason) => reason)
    expect(readFault(timeout)).toMatchObject({ kind: 'timeout', fatal: true })
    await late.end()
  })

  it('a broken pipe is not taken for an SQLSTATE', async () => {
    const error = await new Promise((resolve) => {
      const socket = connect(Number(new URL(url).port), '127.0.0.1', () => {
        socket.destroy(Object.assign(new Error('write EPIPE'), { code: 'EPIPE', syscall: 'write' }))
      })
      socket.on('error', resolve)
    })
    expect(readFault(error)).toMatchObject({ kind: 'connection' })
    expect(readFault(error)?.sqlState).toBeUndefined()
  })
})

describe('what is not about the database', () => {
  it.each([
    undefined,
    null,
    'text',
    7,
    new TypeError('a bug'),
    { code: '40001' },
    new Error('x', { cause: new Error('y') }),
  ])('is left as it is: %o', (error) => {
    expect(readFault(error)).toBeUndefined()
    expect(translateError(error)).toBe(error)
  })

  it('also when its causes go round in a circle', () => {
    const error = new Error('round')
    error.cause = error
    expect(readFault(error)).toBeUndefined()
  })
})

it('reads the error inside the wrappers of other libraries', async () => {
  const inner = await failureOf('select 1 / 0')
  for (const wrapped of [
    new Error('w', { cause: inner }),
    { driverError: inner },
    new Error('a', { cause: new Error('b', { cause: inner }) }),
  ]) {
    expect(readFault(wrapped)).toMatchObject({ sqlState: '22012' })
  }
})
