import pg, { type Pool } from 'pg'
import { expect, it } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { crashLoop } from './crash-loop.js'
import type { CrashLoopOptions } from './options.js'

const { url } = exploredSchema(
  'create table job (id int primary key, status text not null, n int not null default 0)',
)

const loop = (options: Omit<CrashLoopOptions, 'url'>) =>
  crashLoop({
    url,
    throws: false,
    modes: ['half-open'],
    setup: (db) => db.query(`insert into job values (1, 'ready')`),
    progress: async (db) => (await db.query(`select from job where status = 'done'`)).rows.length === 1,
    ...options,
  })

/** All of the work in one transaction. */
const work =
  (claim: string, begin = 'begin') =>
  async (db: Pool): Promise<void> => {
    const tx = await db.connect()
    try {
      await tx.query(begin)
      const { rows } = await tx.query(claim)
      if (rows.length > 0) await tx.query(`update job set status = 'done', n = n + 1`)
      await tx.query('commit')
    } finally {
      tx.release()
    }
  }

const waiting = work(`select from job where status = 'ready' for update`)
const skipping = work(`select from job where status = 'ready' for update skip locked`)

it('the server holds the locks of a client that is gone until somebody notices', async () => {
  const { verdict, points, notes, printout } = await loop({ run: waiting })
  expect(verdict, printout).toBe('passed')
  const waited = points.filter((point) => point.waited !== undefined)
  expect(waited.map(({ replay }) => replay)).toEqual([
    'half-open:after-1',
    'half-open:before-2',
    'half-open:after-2',
    'half-open:before-3',
  ])
  expect(waited[0]?.waited).toBe(
    `recovery 1 waits for run in: select from job where status = 'ready' for update`,
  )
  expect(waited[0]?.story.map((line) => (line.kind === 'event' ? line.text : line.who))).toEqual([
    'run',
    'the process is gone, and the server has not noticed',
    'recovery 1',
    'the server notices that run is gone',
    'recovery 1',
    'recovery 1',
  ])
  expect(notes[0]).toMatch(
    /^At 4 points recovery waited for a transaction of a process that was gone or asleep/,
  )
})

it('whoever passes by what is locked has not done it, and comes again', async () => {
  const { verdict, points, printout } = await loop({ run: skipping })
  expect(verdict, printout).toBe('passed')
  expect(points.find(({ replay }) => replay === 'half-open:after-1')).toMatchObject({
    recoveries: 2,
    waited: 'recovery could not finish before the server noticed that run was gone',
  })
})

it('without a word on what is to be done, one more looks at what was locked', async () => {
  const { verdict, printout } = await loop({
    run: skipping,
    progress: undefined,
    invariant: async (db) => expect((await db.query('select n from job')).rows).toEqual([{ n: 1 }]),
  })
  expect(verdict, printout).toBe('passed')
})

it('each process has a pool of its own', async () => {
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  const report = await crashLoop({
    pool,
    throws: false,
    modes: ['half-open', 'zombie'],
    setup: (db) => db.query(`insert into job values (1, 'ready')`),
    run: () => pool.query(`update job set status = 'done'`),
    invariant: () => true,
    mayWriteLate: () => true,
  }).finally(() => pool.end())
  expect(report.verdict, report.printout).toBe('passed')
})

it.each([
  ['waits', waiting],
  ['passes by', skipping],
])('fails where recovery may not wait and %s', async (_, run) => {
  const { points } = await loop({ run, mayWait: false })
  const failed = points.filter(({ verdict }) => verdict === 'failed')
  expect(failed.map(({ replay, failure }) => [replay, failure?.kind])).toEqual([
    ['half-open:after-1', 'waited'],
    ['half-open:before-2', 'waited'],
    ['half-open:after-2', 'waited'],
    ['half-open:before-3', 'waited'],
  ])
})

it('a transaction that the server itself would end keeps nobody waiting for ever', async () => {
  const begin = `begin; set local idle_in_transaction_session_timeout = '30s'`
  for (const claim of ['for update', 'for update skip locked']) {
    const { verdict, points, printout } = await loop({
      run: work(`select from job where status = 'ready' ${claim}`, begin),
      mayWait: false,
    })
    expect(verdict, printout).toBe('passed')
    expect(points.filter(({ waited }) => waited !== undefined)).toHaveLength(4)
  }
})

it('a wait that the code itself bounds is its own business', async () => {
  const { verdict, points, printout } = await loop({
    mayWait: false,
    run: work(`select from job where status = 'ready' for update`, `begin; set local lock_timeout = '20ms'`),
    recover: async (db) => {
      await work(
        `select from job where status = 'ready' for update`,
        `begin; set local lock_timeout = '20ms'`,
      )(db)
    },
    // The one that stands in the way is gone by then.
    advance: () => {},
    progress: () => true,
  })
  expect(verdict, printout).toBe('passed')
  expect(points.every(({ waited }) => waited === undefined)).toBe(true)
})

it('recovery goes first to others, and then takes what was held', async () => {
  const { verdict, points, printout } = await loop({
    setup: (db) => db.query(`insert into job values (1, 'ready'), (2, 'ready')`),
    run: async (db) => {
      for (let left = 3; left > 0; left--) {
        const { rows } = await db.query(
          `update job set status = 'done', n = n + 1
            where id = (select id from job where status = 'ready' order by id limit 1 for update skip locked)
           returning id`,
        )
        if (rows.length === 0) return
      }
    },
    progress: async (db) => (await db.query(`select from job where status <> 'done'`)).rows.length === 0,
    invariant: async (db) => expect((await db.query('select n from job')).rows).toEqual([{ n: 1 }, { n: 1 }]),
    mayWait: false,
  })
  expect(verdict, printout).toBe('passed')
  expect(points).toHaveLength(1 + 6)
})
