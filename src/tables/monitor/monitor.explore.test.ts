import assert from 'node:assert/strict'
import { beforeAll, describe, it, vi } from 'vitest'
import { inShort, itInDepth } from '../../../test/depth.js'
import { exploredTables } from '../../../test/tables/explored-tables.js'
import type { ExploreHandle } from '../../testing/explore/options.js'
import type { Outcome } from '../../testing/gate/actor.js'
import type { Monitor, MonitorReport } from './monitor.js'
import type { MonitorOptions } from './monitor-options.js'

/** A machine that has other things to do takes its time. */
vi.setConfig({ testTimeout: 120_000 })

const fixture = exploredTables(
  `create table task (id int primary key, status text not null, updated_at timestamptz, lease_until timestamptz, attempts int, fence bigint, holder text, note text,
     constraint no_bad check (note is distinct from 'bad' or status <> 'PENDING'));
   create table done (id int, by text);
   create table moved (id int)`,
  ['task'],
)
const { exploreAll } = fixture

let requeue: Monitor
let leased: Monitor
let withFunction: Monitor
beforeAll(() => {
  const base = {
    ...{ table: 'task', stuck: 'PROCESSING', timeColumn: 'updated_at', olderThanMs: 60_000 },
    ...{
      requeueTo: 'PENDING',
      failTo: 'FAILED',
      attemptsColumn: 'attempts',
      maxAttempts: 9,
      fenceColumn: 'fence',
    },
  } as const
  const define = (name: string, options: Pick<MonitorOptions<{ id: number }>, 'action' | 'leaseColumn'>) =>
    fixture.dibs.monitor(name, { ...base, ...options })
  requeue = define('requeue', { action: 'requeue' })
  leased = define('leased', { action: 'requeue', leaseColumn: 'lease_until' })
  withFunction = define('withFunction', {
    leaseColumn: 'lease_until',
    action: async ({ id }, tx) => {
      await tx.query('insert into moved values ($1)', [id])
      return 'requeue'
    },
  })
})

/** Tasks that a worker has left long ago, whose lease is over. */
const stuck =
  (...ids: number[]) =>
  (db: { query(sql: string): Promise<unknown> }): Promise<unknown> =>
    db.query(
      `insert into task (id, status, updated_at, lease_until, attempts, fence, holder)
       select id, 'PROCESSING', '2029-01-01', '2029-01-01', 0, 7, 'old' from unnest('{${ids}}'::int[]) id`,
    )
const write = async (db: ExploreHandle, sql: string): Promise<number> => (await db.query(sql)).rowCount ?? 0
const rowsOf = async (db: ExploreHandle, sql: string) => (await db.query(sql)).rows
function answerOf<T>(outcome: Outcome | undefined): T {
  assert.equal(outcome?.status, 'fulfilled', String((outcome as { reason?: unknown })?.reason))
  return outcome.value as T
}
const requeuedBy = (...outcomes: readonly (Outcome | undefined)[]): number =>
  outcomes.reduce((sum, outcome) => {
    const { errors, requeued } = answerOf<MonitorReport>(outcome)
    assert.equal(errors, 0)
    return sum + requeued
  }, 0)
const complete = (db: ExploreHandle) =>
  write(db, "update task set status = 'DONE' where id = 1 and status = 'PROCESSING'")

/** Either the worker has had its way, and the task is as it left it, or the monitor has. */
const oneOfBoth =
  (status: string) =>
  async (db: ExploreHandle, { worker, monitor }: Readonly<Record<string, Outcome>>) => {
    const requeued = requeuedBy(monitor)
    assert.equal(answerOf<number>(worker) + requeued, 1)
    const [task] = await rowsOf(db, 'select status, attempts, fence::text, holder from task where id = 1')
    const [{ moved }] = (await rowsOf(db, 'select count(*)::int as moved from moved')) as [{ moved: number }]
    assert(moved === 0 || moved === requeued)
    assert.deepEqual([task?.status, task?.attempts], requeued === 1 ? ['PENDING', 1] : [status, 0])
    assert.equal(task?.fence !== '7', requeued === 1)
  }

describe('against a worker that lives', () => {
  it.each([
    ['a batch', () => leased],
    ['a function', () => withFunction],
  ])('that completes: %s', (_, monitor) =>
    exploreAll({
      setup: stuck(1),
      actors: { worker: complete, monitor: () => monitor().run() },
      bound: inShort(3),
      invariant: oneOfBoth('DONE'),
    }),
  )

  it.each([
    ['its lease', () => leased, 'lease_until'],
    ['its lease, and a function', () => withFunction, 'lease_until'],
    ['its time', () => requeue, 'updated_at'],
  ])('that renews %s', (_, monitor, column) =>
    exploreAll({
      setup: stuck(1),
      actors: {
        worker: (db) =>
          write(db, `update task set ${column} = '2031-01-01' where id = 1 and status = 'PROCESSING'`),
        monitor: () => monitor().run(),
      },
      bound: inShort(3),
      invariant: oneOfBoth('PROCESSING'),
    }),
  )

  it('that completes while a batch is done singly, since one of it is bad', () =>
    exploreAll({
      setup: async (db) => {
        await stuck(1, 2)(db)
        await db.query("update task set note = 'bad' where id = 2")
      },
      actors: { worker: complete, monitor: () => leased.run() },
      bound: inShort(2),
      invariant: async (db, { worker, monitor }) => {
        const { requeued, errors } = answerOf<MonitorReport>(monitor)
        assert.deepEqual([answerOf<number>(worker) + requeued, errors], [1, 1])
        assert.deepEqual(
          (await rowsOf(db, 'select status from task order by id')).map(({ status }) => status),
          [requeued === 1 ? 'PENDING' : 'DONE', 'PROCESSING'],
        )
      },
    }))

  it('in a transaction that is rolled back, the task is left to the next run', () =>
    exploreAll({
      setup: stuck(1),
      actors: {
        worker: async (db) => {
          const client = await db.connect()
          await client.query('begin')
          await client.query("update task set status = 'DONE' where id = 1 and status = 'PROCESSING'")
          await client.query('rollback')
          client.release()
        },
        monitor: () => leased.run(),
      },
      bound: inShort(3),
      invariant: async (db, { monitor }) => {
        const requeued = requeuedBy(monitor)
        assert.deepEqual(await rowsOf(db, 'select status, attempts from task'), [
          requeued === 1 ? { status: 'PENDING', attempts: 1 } : { status: 'PROCESSING', attempts: 0 },
        ])
      },
    }))
})

describe('of two monitors', () => {
  const effectsOf = (one: Monitor, other: Monitor, ids: readonly number[], preemptions: number) =>
    exploreAll({
      setup: stuck(...ids),
      actors: { ann: () => one.run(), bob: () => other.run() },
      bound: inShort(preemptions),
      invariant: async (db, { ann, bob }) => {
        assert.equal(requeuedBy(ann, bob), ids.length)
        const put = { status: 'PENDING', attempts: 1 }
        assert.deepEqual(
          await rowsOf(db, 'select status, attempts from task'),
          ids.map(() => put),
        )
        const moved = await rowsOf(db, 'select id from moved')
        assert.equal(new Set(moved.map(({ id }) => id)).size, moved.length)
      },
    })

  it('each task has one effect: batches', () => effectsOf(leased, leased, [1, 2], 3))
  it('each task has one effect: functions', () => effectsOf(withFunction, withFunction, [1], 2))
  it('each task has one effect: one of each', () => effectsOf(leased, withFunction, [1], 2))
  itInDepth('each task has one effect: functions, of two', () =>
    effectsOf(withFunction, withFunction, [1, 2], 2),
  )
})

type Task = { id: number; fence: string }
const take = (status: readonly string[], holder: string) =>
  fixture.dibs.rows.claim<Task>('task', {
    ...{ where: { status }, set: { status: 'PROCESSING' }, leaseColumn: 'lease_until', fenceColumn: 'fence' },
    ...{ holderColumn: 'holder', holder },
  })
const finish = (db: ExploreHandle, { id, fence }: Task, by: string) =>
  db.query(
    `with ended as (update task set status = 'DONE', lease_until = null where id = $1 and fence = $2 returning id)
     insert into done select id, $3 from ended`,
    [id, fence, by],
  )

describe('a worker that is gone', () => {
  it.each([
    ['by one who takes what was put back', ['PENDING']],
    ['by one who takes what it has left', ['PENDING', 'PROCESSING']],
  ])('is replaced, %s: nothing is taken from the next', (_, states) =>
    exploreAll({
      setup: stuck(1),
      actors: { monitor: () => leased.run(), ann: () => take(states, 'ann') },
      bound: inShort(3),
      invariant: async (db, { monitor, ann }) => {
        const [taken] = answerOf<Task[]>(ann)
        const requeued = requeuedBy(monitor)
        const [task] = await rowsOf(db, 'select status, holder, attempts, fence::text from task')
        assert.equal(task?.attempts, requeued)
        if (taken)
          assert.deepEqual(task, {
            status: 'PROCESSING',
            holder: 'ann',
            attempts: requeued,
            fence: taken.fence,
          })
        else assert.equal(task?.status, 'PENDING')
        assert(taken || requeued === 1)
      },
    }),
  )

  it('and wakes up late finishes nothing that was put back', () =>
    exploreAll({
      setup: stuck(1),
      actors: {
        old: (db) => finish(db, { id: 1, fence: '7' }, 'old'),
        monitor: () => leased.run(),
      },
      bound: inShort(3),
      invariant: async (db, { monitor }) => {
        const requeued = requeuedBy(monitor)
        assert.equal((await rowsOf(db, 'select from done')).length, 1 - requeued)
        assert.deepEqual(await rowsOf(db, 'select status from task'), [
          { status: requeued === 1 ? 'PENDING' : 'DONE' },
        ])
      },
    }))

  itInDepth('wakes up late, while the next is at it: done once', () =>
    exploreAll({
      setup: stuck(1),
      actors: {
        old: (db) => finish(db, { id: 1, fence: '7' }, 'old'),
        monitor: () => leased.run(),
        ann: async (db) => {
          const [task] = await take(['PENDING'], 'ann')
          if (task) await finish(db, task, 'ann')
        },
      },
      bound: { preemptions: 2 },
      invariant: async (db) => {
        const done = await rowsOf(db, 'select by from done')
        const [task] = await rowsOf(db, 'select status from task')
        assert.equal(done.length, task?.status === 'DONE' ? 1 : 0)
      },
    }),
  )
})
