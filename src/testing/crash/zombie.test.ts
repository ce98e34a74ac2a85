import { setTimeout as sleep } from 'node:timers/promises'
import pg, { type Pool } from 'pg'
import { expect, it } from 'vitest'
import { exploredSchema } from '../../../test/explored-schema.js'
import { crashLoop } from './crash-loop.js'
import { recordEffects } from './effects.js'
import type { CrashLoopOptions } from './options.js'

const { url } = exploredSchema(`
  create table clock (now int not null);
  create table job (id int primary key, fence int not null, until int not null, status text not null, by text);
  create table log (id int generated always as identity primary key, text text not null)`)

const loop = (options: Omit<CrashLoopOptions, 'url'>) =>
  crashLoop({
    url,
    throws: false,
    modes: ['zombie'],
    setup: (db) => db.query(`insert into clock values (0); insert into job values (1, 0, 0, 'ready')`),
    advance: (db) => db.query('update clock set now = now + 100'),
    progress: async (db) => (await db.query(`select from job where status = 'done'`)).rows.length === 1,
    ...options,
  })

const claim = async (db: Pool): Promise<number | undefined> => {
  const { rows } = await db.query(
    `update job set fence = fence + 1, until = now + 30 from clock
      where status = 'ready' and until <= now returning fence`,
  )
  return rows[0]?.fence
}

const work = (isFenced: boolean) => async (db: Pool) => {
  const fence = await claim(db)
  if (fence === undefined) return 'nothing to do'
  const { rowCount } = await db.query(
    `update job set status = 'done', by = $1 ${isFenced ? 'where fence = $2' : 'where $2 > 0'}`,
    [`claim ${fence}`, fence],
  )
  return rowCount === 1 ? 'done' : 'lost'
}

it('a late write that is accepted is found, though the invariant says nothing', async () => {
  const { points } = await loop({ run: work(false) })
  const failed = points.filter(({ verdict }) => verdict === 'failed')
  expect(failed.map(({ replay }) => replay)).toEqual(['zombie:after-1', 'zombie:before-2'])
  expect(failed[0]?.failure?.kind).toBe('late write')
  expect(failed[0]?.failure?.message).toMatch(
    /^After it woke up, run has written over what another had written meanwhile: \w+\.job \{"by":"claim 2"|"id":1/,
  )
  expect(failed[0]?.lateWrites[0]?.row).toMatchObject({ status: 'done', by: 'claim 2' })
  expect(failed[0]?.story.map((line) => (line.kind === 'event' ? line.text : line.who))).toEqual([
    'run',
    'the process stands still',
    'recovery 1',
    'time moves past the leases',
    'recovery 2',
    'recovery 2',
    'run wakes up and goes on',
    'run',
  ])
})

it('one that is refused is not, and the late one learns of it', async () => {
  const told: unknown[] = []
  const { verdict, points, printout } = await loop({
    run: work(true),
    invariant: (_db, { run, fault }) => {
      if (fault?.statement === 2) told.push(run?.status === 'fulfilled' && run.value)
    },
  })
  expect(verdict, printout).toBe('passed')
  expect(points.map(({ replay, path }) => [replay, path])).toEqual([
    ['none', 'nothing to do'],
    ['zombie:before-1', 'from the start'],
    ['zombie:after-1', 'A'],
    ['zombie:before-2', 'A'],
    ['zombie:after-2', 'nothing to do'],
  ])
  expect(told).toEqual(['lost', 'done'])
})

it('what it may write late can be said', async () => {
  const writes: unknown[] = []
  const { verdict } = await loop({
    run: work(false),
    mayWriteLate: ({ table, row }) => {
      writes.push([table.replace(/^.*\./, ''), row.by])
      return true
    },
  })
  expect(verdict).toBe('passed')
  expect(writes).toEqual([
    ['job', 'claim 2'],
    ['job', 'claim 2'],
  ])
})

it('whoever had claimed nothing yet may take what another has left', async () => {
  const { verdict, points, printout } = await loop({
    run: async (db) => {
      await db.query('select from job')
      await db.query(`update log set text = 'taken' where text = 'left'`)
    },
    recover: (db) => db.query(`insert into log (text) values ('left')`),
    progress: () => true,
  })
  expect(verdict, printout).toBe('passed')
  expect(points).toHaveLength(1 + 4)
})

it('whoever writes the same again does no harm, and a `reset` hides nothing', async () => {
  const same = await loop({
    run: async (db) => {
      await db.query(`insert into log (text) values ('begun')`)
      await db.query(`update job set status = 'done', until = 7`)
    },
  })
  expect(same.verdict, same.printout).toBe('passed')
  const reset = await loop({
    run: work(false),
    reset: (db) => db.query('delete from job; delete from clock; delete from log'),
  })
  expect(reset.points.filter(({ failure }) => failure?.kind === 'late write')).toHaveLength(2)
})

it('`advance` may want what it holds', async () => {
  for (const mode of ['zombie', 'half-open'] as const) {
    const { verdict, printout, points } = await loop({
      modes: [mode],
      run: async (db) => {
        const tx = await db.connect()
        await tx.query('begin')
        await tx.query(`update job set status = 'done'`)
        await tx.query('commit')
        tx.release()
      },
      advance: (db) => db.query('update job set until = 0'),
      mayWriteLate: () => true,
      recover: async (db) => {
        await db.query(
          `update job set status = 'done' where id in (select id from job for update skip locked)`,
        )
      },
    })
    expect(verdict, printout).toBe('passed')
    expect(points.filter(({ waited }) => waited === '`advance` waits for run').length).toBeGreaterThan(0)
  }
})

it('a timer that fires when it goes on is its own, and an interval fires once', async () => {
  const pool = new pg.Pool({ connectionString: url })
  let beats = 0
  let atWake = 0
  /** The first after waking up, and one for each of its times that have gone by since. */
  let most = 0
  const report = await crashLoop({
    pool,
    throws: false,
    replay: 'zombie:before-2',
    setup: (db) => db.query(`insert into job values (1, 0, 0, 'ready')`),
    run: async () => {
      await pool.query('select from job')
      let firstAt = performance.now()
      const beating = setInterval(() => {
        if (beats++ === 0) firstAt = performance.now()
        void pool.query('select from clock')
      }, 50)
      await pool.query(`update job set status = 'done'`)
      atWake = beats
      most = 2 + (performance.now() - firstAt) / 50
      clearInterval(beating)
    },
    recover: async () => {
      await sleep(400) // the interval's own time has to pass, several times over
      beats = 0
    },
    invariant: () => true,
  }).finally(() => pool.end())
  expect(report.verdict, report.printout).toBe('passed')
  expect(atWake).toBeLessThanOrEqual(most)
})

it('rows of its own may be written at any time', async () => {
  const { verdict, printout } = await loop({
    run: async (db) => {
      await db.query(`insert into log (text) values ('begun')`)
      await work(true)(db)
      await db.query(`insert into log (text) values ('over')`)
    },
  })
  expect(verdict, printout).toBe('passed')
})

it('a deleted row is written over as well', async () => {
  const { points } = await loop({
    modes: ['zombie'],
    run: async (db) => {
      const fence = await claim(db)
      if (fence === undefined) return
      await db.query(`insert into log (text) values ('done')`)
      await db.query('delete from job where fence >= $1', [fence])
    },
    recover: async (db) => {
      if ((await claim(db)) !== undefined) await db.query(`update job set by = 'recovery', status = 'done'`)
    },
    progress: async (db) => (await db.query(`select from job where status = 'ready'`)).rows.length === 0,
  })
  expect(points.filter(({ failure }) => failure?.kind === 'late write').map(({ replay }) => replay)).toEqual([
    'zombie:after-1',
    'zombie:before-2',
    'zombie:after-2',
    'zombie:before-3',
  ])
})

it('its timers stand still as well, and fire when it goes on', async () => {
  const effects = recordEffects()
  const order: string[] = []
  await loop({
    effects,
    replay: 'zombie:before-2',
    run: async (db) => {
      const fence = await claim(db)
      if (fence === undefined) return
      const waiting = sleep(600).then(() => order.push('timer'))
      const other = new Promise<void>((resolve) => setTimeout(() => resolve(void order.push('other')), 600))
      await db.query('select from job')
      await Promise.all([waiting, other])
      await db.query(`update job set status = 'done' where fence = $1`, [fence])
    },
    recover: async (db) => {
      await sleep(700)
      order.push('recovery')
      if ((await claim(db)) !== undefined) await db.query(`update job set status = 'done'`)
    },
  })
  // The run without a fault and its recovery, recovery alone, and then the one that stands still.
  expect(order.slice(0, 2).toSorted()).toEqual(['other', 'timer'])
  expect(order.slice(2, 6)).toEqual(['recovery', 'recovery', 'recovery', 'recovery'])
  expect(order.slice(6).toSorted()).toEqual(['other', 'timer'])
})

it('recovery that waits for it goes on after it, and who waits for whom may be a circle', async () => {
  const transfer =
    (first: number, second: number) =>
    async (db: Pool): Promise<void> => {
      const tx = await db.connect()
      try {
        await tx.query('begin')
        await tx.query('update job set fence = fence + 1 where id = $1', [first])
        await tx.query('update job set fence = fence + 1 where id = $1', [second])
        await tx.query('commit')
      } catch (error) {
        await tx.query('rollback')
        throw error
      } finally {
        tx.release()
      }
    }
  const { verdict, points, printout } = await loop({
    setup: (db) =>
      db.query(`insert into clock values (0); insert into job values (1, 0, 0, ''), (2, 0, 0, '')`),
    run: transfer(1, 2),
    recover: transfer(2, 1),
    progress: () => true,
    invariant: async (db) => {
      const { rows } = await db.query('select distinct fence from job')
      expect(rows).toHaveLength(1)
    },
    mayWriteLate: () => true,
  })
  expect(verdict, printout).toBe('passed')
  expect(points.filter(({ waited }) => waited !== undefined).length).toBeGreaterThan(0)
})
