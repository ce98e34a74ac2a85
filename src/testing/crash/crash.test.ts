import { setTimeout as sleep } from 'node:timers/promises'
import pg, { type Pool } from 'pg'
import { expect, it, vi } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { crashLoop } from './crash-loop.js'
import { recordEffects } from './effects.js'
import type { CrashLoopOptions } from './options.js'
import type { CrashPoint } from './report/report.js'

const { url } = exploredSchema('create table t (id int primary key, n int not null default 0)')

const loop = (options: Omit<CrashLoopOptions, 'url'>) =>
  crashLoop({ url, throws: false, invariant: () => true, ...options })

const replays = (points: readonly CrashPoint[]): string[] => points.map(({ replay }) => replay)

it('strikes before and after each statement, COMMIT too, until a run comes to its end', async () => {
  const { points, statements, runs } = await loop({
    modes: ['crash'],
    run: async (db) => {
      await db.query('insert into t values (1) on conflict do nothing')
      const tx = await db.connect()
      await tx.query('begin')
      await tx.query('select from t')
      await tx.query('commit')
      tx.release()
    },
  })
  expect(replays(points)).toEqual([
    'none',
    ...['before-1', 'after-1', 'before-2', 'after-2', 'before-3', 'after-3'].map((place) => `crash:${place}`),
  ])
  expect(points[4]?.statement).toBe('begin; select from t')
  expect(points[5]?.statement).toBe('commit')
  expect(statements).toBe(3)
  // Without a fault, of recovery alone, the points, and the one that was not reached.
  expect(runs).toBe(1 + 1 + 6 + 1)
})

it('what was executed is there, and what was not sent is not', async () => {
  const left: Record<string, number> = {}
  await loop({
    modes: ['crash'],
    run: (db) => db.query('insert into t values (1)'),
    recover: () => {},
    invariant: async (db, { fault }) => {
      const { rows } = await db.query('select from t')
      left[fault ? `${fault.side} ${fault.statement}` : 'none'] = rows.length
    },
  })
  expect(left).toMatchObject({ none: 1, 'before 1': 0, 'after 1': 1 })
})

it('neither `catch` nor `finally` nor anything after it runs in a process that is gone', async () => {
  const ran: string[] = []
  const { points } = await loop({
    modes: ['crash'],
    run: async (db) => {
      try {
        await db.query('insert into t values (1) on conflict do nothing')
        ran.push('after')
      } catch {
        ran.push('catch')
      } finally {
        ran.push('finally')
      }
    },
    recover: () => {},
  })
  expect(points).toHaveLength(3)
  // Entries of two runs: the one without a fault, and the one that did not reach its point.
  expect(ran).toEqual(['after', 'finally', 'after', 'finally'])
})

it('timers of a process that is gone fall silent, and so does its heartbeat', async () => {
  let beats = 0
  let struck = 0
  const { verdict, printout, points } = await loop({
    modes: ['crash'],
    setup: (db) => db.query('insert into t values (1)'),
    run: async (db) => {
      let isUnderWay = false // on a busy machine they come faster than they are done
      const beating = setInterval(async () => {
        beats++
        if (isUnderWay) return
        isUnderWay = true
        await db.query('update t set n = n + 1')
        isUnderWay = false
      }, 2)
      await sleep(1)
      await db.query('select from t')
      clearInterval(beating)
    },
    recover: async () => {
      struck = beats
    },
    invariant: async () => {
      await sleep(20)
      expect(beats).toBe(struck)
    },
  })
  expect(verdict, printout).toBe('passed')
  expect(points.length).toBeGreaterThan(2)
})

it('whoever waits in a timer never goes on', async () => {
  let woke = 0
  await loop({
    modes: ['crash'],
    run: async (db) => {
      const waiting = sleep(1_000).then(() => woke++) // longer than a busy machine needs to come to the crash
      await db.query('select from t')
      await waiting
    },
    recover: () => sleep(1_100),
  })
  // Two runs wake up: the one without a fault, and the one that did not reach its point.
  expect(woke).toBe(2)
})

/** Its backend takes its time to go: these are removed first. */
const manyTempTables = `do $$ begin for i in 1..100 loop execute format('create temp table many_%s ()', i); end loop; end $$`

it('its transactions are rolled back and its locks are free before recovery begins', async () => {
  let gets = false
  const { verdict, points, printout } = await loop({
    modes: ['crash'],
    setup: (db) => db.query('insert into t values (1)'),
    run: async (db) => {
      const [idle, tx] = [await db.connect(), await db.connect()]
      await idle.query('select pg_advisory_lock(7)')
      idle.release()
      await tx.query('select pg_advisory_lock(8)')
      await tx.query(manyTempTables)
      await tx.query('begin')
      await tx.query('update t set n = n + 1')
      await tx.query('commit')
      tx.release()
    },
    recover: async (db) => {
      const { rows } = await db.query(
        'select pg_try_advisory_lock(7) and pg_try_advisory_lock(8) as got from t for update nowait',
      )
      gets = rows[0].got
    },
    // An instance whose function has ended is still alive.
    invariant: (_db, { run }) => gets === (run === undefined),
  })
  expect(verdict, printout).toBe('passed')
  expect(points).toHaveLength(1 + 10)
})

it('dies by itself where it says so', async () => {
  const { verdict, points } = await loop({
    modes: ['crash'],
    run: async (db, { die, number }) => {
      await db.query('insert into t values (1) on conflict do nothing')
      if (number === 1) await die()
      await db.query('update t set n = 1')
    },
    progress: async (db) => (await db.query('select from t where n = 1')).rows.length === 1,
  })
  expect(verdict).toBe('passed')
  expect(points.map(({ run }) => run)).toEqual(['died', 'died', 'died'])
})

it('counts statements of several connections in an order that stays', async () => {
  const run = (db: Pool) =>
    Promise.all([
      db.query('insert into t values (1)'),
      db.query('insert into t values (2)'),
      db.query('select from t'),
    ])
  const seen = new Set<string>()
  for (let i = 0; i < 5; i++) {
    const { points } = await loop({ modes: ['crash'], run, recover: () => {} })
    seen.add(JSON.stringify(points.map(({ replay, statement }) => [replay, statement])))
  }
  expect(seen.size).toBe(1)
})

it('a message of several statements is sent and lost as one', async () => {
  const { points } = await loop({
    modes: ['crash'],
    run: (db) => db.query('insert into t values (1); insert into t values (2)'),
    recover: () => {},
    invariant: async (db, { fault }) => {
      const { rows } = await db.query('select from t')
      expect(rows).toHaveLength(fault?.side === 'before' ? 0 : 2)
    },
  })
  expect(points.map(({ verdict }) => verdict)).toEqual(['passed', 'passed', 'passed'])
})

it('goes on with a pool that the code has in a module, and with another driver', async () => {
  const { default: postgres } = await import('postgres')
  const pool = new pg.Pool({ connectionString: url })
  try {
    const report = await crashLoop({
      pool,
      modes: ['crash', 'error'],
      run: () => pool.query('insert into t values (1) on conflict do nothing'),
      invariant: async (db) => expect((await db.query('select from t')).rows).toHaveLength(1),
    })
    expect(report.points).toHaveLength(1 + 2 + 7)
  } finally {
    await pool.end()
  }
  const report = await crashLoop({
    url,
    modes: ['crash', 'error'],
    errors: ['40001'],
    run: async (db) => {
      const sql = postgres(db.url, { max: 1, fetch_types: false })
      try {
        await sql.begin(async (tx) => {
          await tx`insert into t values (${1}) on conflict do nothing`
        })
      } finally {
        await sql.end({ timeout: 0 })
      }
    },
    invariant: async (db) => expect((await db.query('select from t')).rows).toHaveLength(1),
  })
  expect(report.points).toHaveLength(1 + 4 + 2)
})

it('a second crash during recovery finds what one does not', async () => {
  const effects = recordEffects()
  const options: Omit<CrashLoopOptions, 'url'> = {
    modes: ['crash'],
    setup: (db) => db.query('insert into t values (1)'),
    run: (db) => db.query('update t set n = 1'),
    // The recovery sends its mail before it records that.
    recover: async (db) => {
      const { rows } = await db.query('select n from t')
      if (rows[0].n === 2) return
      await effects.perform('mail', 'order 1')
      await db.query('update t set n = 2')
    },
    effects,
  }
  const once = await loop(options)
  expect(once.verdict, once.printout).toBe('passed')
  const twice = await loop({ ...options, duringRecovery: true })
  const failed = twice.points.filter(({ verdict }) => verdict === 'failed')
  expect(replays(failed)[0]).toBe('crash:before-1:again-before-2')
  expect(failed[0]?.failure).toEqual({
    kind: 'repeated effect',
    message: 'mail took place 2 times for order 1.',
  })
  const again = await loop({ ...options, replay: failed[0]?.replay })
  expect(again.points.map(({ verdict }) => verdict)).toEqual(['passed', 'failed'])
})

it('code that is gone does not hear of it, by whatever driver it connects', async () => {
  const ran: string[] = []
  const { verdict, printout } = await loop({
    modes: ['crash', 'half-open'],
    run: async (db) => {
      const client = new pg.Client(db.url) // and nobody listens to its errors
      await client.connect()
      try {
        await client.query('insert into t values (1) on conflict do nothing')
        ran.push('after')
      } catch {
        ran.push('catch')
      } finally {
        ran.push('finally')
        await client.end()
      }
    },
    recover: () => {},
  })
  expect(verdict, printout).toBe('passed')
  // Entries of three runs: the one without a fault, and the two that did not reach their points.
  expect(ran).toEqual(['after', 'finally', 'after', 'finally', 'after', 'finally'])
})

it('what listeners of a client do is the doing of its process', async () => {
  const effects = recordEffects()
  const { verdict, printout, points } = await loop({
    modes: ['crash'],
    effects,
    run: async (db) => {
      const client = await db.connect()
      client.on('notification', () => void effects.perform('bell', 'it'))
      await client.query('listen it')
      await client.query('notify it')
      client.release()
      await db.query('select from t')
    },
    recover: () => new Promise((resolve) => setTimeout(resolve, 20)),
  })
  expect(verdict, printout).toBe('passed')
  expect(points.length).toBeGreaterThan(4)
})

it('a run that comes to its end before its point is told of, and so is what it leaves', async () => {
  let runs = 0
  const { points, notes } = await loop({
    modes: ['crash'],
    // Every third time it does something else, and wrong.
    run: async (db) => {
      if (++runs % 3 === 0) return db.query('insert into t values (99)')
      for (const id of [1, 2, 3]) await db.query('insert into t values ($1)', [id])
    },
    recover: () => {},
    invariant: async (db) => (await db.query('select from t where id = 99')).rows.length === 0,
  })
  expect(points.map(({ failure }) => failure?.message)).toContain(
    'The invariant returned false.\nIt came to its end before this point: nothing was done to it.',
  )
  expect(notes).toContainEqual(
    expect.stringMatching(
      /came to its end before points that it has without a fault, which were not tried: crash:/,
    ),
  )
})

it('stops at nothing that the test has put in place of timers', async () => {
  vi.useFakeTimers()
  try {
    const { points } = await loop({
      modes: ['crash'],
      run: (db) => db.query('select from t'),
      recover: () => {},
    })
    expect(points).toHaveLength(3)
  } finally {
    vi.useRealTimers()
  }
})
