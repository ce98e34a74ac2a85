import type { Pool } from 'pg'
import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { controlStatement, type Part, queryPipeline } from '../../../postgres/pipeline.js'
import { nameStatement, statement } from '../../../postgres/statement.js'
import { explore } from '../explore.js'
import type { ExploreOptions } from '../options.js'

const { url } = exploredSchema(`
  create table counter (id int primary key, n int not null);
  create table entry (id int generated always as identity primary key, text text);
  create procedure commits() language plpgsql as $$ begin insert into entry (text) values ('a'); commit; end $$;
`)
const start = (db: Pool) => db.query('insert into counter values (1, 0)')

describe('steps', () => {
  const stepsOf = async (
    act: (db: Pool) => unknown,
    options: Partial<ExploreOptions> = {},
  ): Promise<string[]> => {
    const report = await explore({
      url,
      setup: start,
      actors: { alice: act },
      invariant: () => false,
      throws: false,
      ...options,
    })
    return report.race?.steps.map(({ text }) => text) ?? []
  }
  const on =
    (...statements: string[]) =>
    async (db: Pool) => {
      const client = await db.connect()
      try {
        for (const sql of statements) await client.query(sql)
      } finally {
        client.release()
      }
    }

  it.each([
    ['a read outside a transaction is one', ['select n from counter'], ['select n from counter']],
    ['a write is two', ['update counter set n = 1'], ['update counter set n = 1', 'commit (implicit)']],
    [
      'a locking read is two',
      ['select n from counter for update'],
      ['select n from counter for update', 'commit (implicit)'],
    ],
    [
      'a read that calls what may write is two',
      [`select setval('entry_id_seq', 3)`],
      [`select setval('entry_id_seq', 3)`, 'commit (implicit)'],
    ],
    [
      'begin, savepoint and set local are one with the next',
      ['begin', 'set local work_mem = 100', 'savepoint a', 'select 1', 'release a', 'commit'],
      ['begin; savepoint a; select 1', 'release a; commit'],
    ],
    [
      'rollback to a savepoint is one',
      ['begin', 'savepoint a', 'select 1', 'rollback to a', 'commit'],
      ['begin; savepoint a; select 1', 'rollback to a', 'commit'],
    ],
    ['a set outside a transaction is none', ['set work_mem = 100', 'select 1'], ['select 1']],
    ['what refuses a transaction is whole', ['vacuum counter'], ['vacuum counter']],
    [
      'several in one message are several',
      ['update counter set n = 1; select n from counter; update counter set n = 2'],
      ['update counter set n = 1', 'select n from counter', 'update counter set n = 2', 'commit (implicit)'],
    ],
    [
      'a transaction in one message is as many as in several',
      ['begin; update counter set n = 1; commit; begin; select 1; commit'],
      ['begin; update counter set n = 1', 'commit', 'begin; select 1', 'commit'],
    ],
    [
      'what follows a commit in one message is one with it',
      ['begin; update counter set n = 1; commit; select 1'],
      ['begin; update counter set n = 1; commit; select 1'],
    ],
    ['what needs a transaction block is not given one', ['lock table counter'], ['lock table counter']],
    [
      'prepare is one, since it takes a snapshot',
      [
        'begin isolation level repeatable read',
        'prepare p as select 1',
        'execute p',
        'commit',
        'deallocate p',
      ],
      ['begin isolation level repeatable read; prepare p as select 1', 'execute p', 'commit', 'deallocate p'],
    ],
    [
      'a do block is two',
      ['do $$ begin update counter set n = 3; end $$'],
      ['do $$ begin update counter set n = 3; end $$', 'commit (implicit)'],
    ],
    ['what cannot be parsed is passed on, and its error back', ['selekt'], ['selekt']],
  ])('%s', async (_, statements, expected) => {
    const reset = (db: Pool) => db.query('delete from counter')
    expect(await stepsOf(on(...statements), { mayFail: () => true, reset })).toEqual(expected)
  })

  it('of a DO block that commits: it is one step', async () => {
    const sql = 'do $$ begin update counter set n = 3; commit; end $$'
    expect(await stepsOf(on(sql), { reset: (db) => db.query('delete from counter') })).toEqual([sql])
  })

  it('of a statement that fails end with it', async () => {
    const report = await explore({ url, setup: start, actors: { alice: start }, throws: false })
    expect(report.race?.steps).toHaveLength(1)
    expect(report.race?.printout).toContain('-> ERROR 23505 duplicate key value')
  })

  it('of reads count at SERIALIZABLE', async () => {
    expect(await stepsOf(on('select 1'), { isolation: 'serializable' })).toEqual([
      'select 1',
      'commit (implicit)',
    ])
  })
})

describe('statements with parameters that share a message', () => {
  const set = (n: string, id = '1'): Part => ({
    statement: nameStatement(statement('update counter set n = $1::text::int where id = $2::text::int')),
    values: [n, id],
  })
  const [begin, commit] = [controlStatement('begin'), controlStatement('commit')]
  const sends =
    (...parts: Part[]) =>
    async (db: Pool) => {
      const client = await db.connect()
      try {
        await queryPipeline(client, parts, true)
      } finally {
        await client.query('rollback')
        client.release()
      }
    }
  const both = (db: Pool) => db.query('insert into counter values (1, 0), (2, 0)')
  const text = 'update counter set n = $1::text::int where id = $2::text::int'

  it('are steps of their own, each with its parameters', async () => {
    const act = sends(
      begin,
      'set local work_mem = 100',
      set('7'),
      controlStatement('savepoint a'),
      set('8'),
      commit,
    )
    const report = await explore({
      url,
      setup: both,
      actors: { alice: act },
      invariant: () => false,
      throws: false,
    })
    expect(report.race?.steps.map((step) => [step.text, step.values])).toEqual([
      [`begin; set local work_mem = 100; ${text}`, ['7', '1']],
      [`savepoint a; ${text}`, ['8', '1']],
      ['commit', []],
    ])
  })

  it('are one transaction without BEGIN', async () => {
    const report = await explore({
      url,
      setup: both,
      actors: { alice: sends(set('7'), set('8', '2')) },
      invariant: () => false,
      throws: false,
    })
    expect(report.race?.steps.map((step) => step.text)).toEqual([text, text, 'commit (implicit)'])
  })

  it('are not run after one that fails, and those before it are undone', async () => {
    const act = sends(begin, set('7'), set('none'), set('8', '2'), commit)
    const report = await explore({
      url,
      setup: both,
      actors: { alice: act },
      mayFail: () => true,
      invariant: async (db) => {
        const { rows } = await db.query('select sum(n)::int as sum from counter')
        return rows[0].sum === 0
      },
    })
    expect(report.schedules).toBe(1)
  })

  it('stay one step if a statement uses what another has parsed, since a step in between would replace that', async () => {
    const twice = async (db: Pool) => {
      const client = await db.connect()
      const result = new Promise<void>((resolve, reject) => {
        const noop = () => {}
        client.query({
          text: 'raw',
          // biome-ignore lint/suspicious/noExplicitAny: what the types of pg leave out
          submit(wire: any) {
            wire.parse({ name: '', text })
            for (const id of ['1', '2']) {
              wire.bind({ statement: '', values: ['7', id] })
              wire.execute({ portal: '' })
            }
            wire.sync()
          },
          callback: noop,
          handleCommandComplete: noop,
          handleReadyForQuery: () => resolve(),
          handleError: reject,
        } as never)
      })
      await result.finally(() => client.release())
    }
    const report = await explore({ url, setup: both, actors: { alice: twice, bob: twice } })
    expect(report.verdict).toBe('passed')
  })

  it.each(['copy entry (text) from /* here */ stdin', 'copy entry (text) from -- here\n stdin'])(
    'stay whole where data follows: %s',
    async (sql) => {
      const act = async (db: Pool) => {
        const client = await db.connect()
        try {
          // pg has no data to send and answers with CopyFail, which the server reports as an error.
          await expect(client.query(`begin; ${sql}; commit`)).rejects.toMatchObject({ code: '57014' })
        } finally {
          await client.query('rollback')
          client.release()
        }
      }
      const report = await explore({
        url,
        setup: both,
        actors: { alice: act },
        mayFail: () => true,
        reset: (db) => db.query('delete from counter'),
      })
      expect(report.verdict).toBe('passed')
    },
  )

  it('are sent again as one step if they cannot run in a transaction block', async () => {
    const seen: unknown[] = []
    const act = async (db: Pool) => {
      const client = await db.connect()
      const named = (sql: string): Part => ({ statement: nameStatement(statement(sql)), values: [] })
      for (let n = 0; n < 2; n++) {
        const parts = [
          named('call commits()'),
          named("insert into entry (text) values ('b') returning 'b' as b"),
        ]
        seen.push((await queryPipeline(client, parts, true)).rows)
      }
      client.release()
    }
    await explore({ url, actors: { alice: act }, reset: (db) => db.query('delete from entry') })
    expect(seen.slice(0, 2)).toEqual([[{ b: 'b' }], [{ b: 'b' }]])
  })

  it('interleave with statements of others', async () => {
    const report = await explore({
      url,
      setup: both,
      actors: {
        alice: sends(begin, set('1', '1'), set('1', '2'), commit),
        bob: sends(begin, set('2', '2'), set('2', '1'), commit),
      },
      throws: false,
    })
    expect(report.race?.printout).toContain('40P01')
  })
})

describe('isolation', () => {
  it.each(['read committed', 'repeatable read', 'serializable'] as const)(
    'is %s if asked',
    async (isolation) => {
      const seen: unknown[] = []
      const readLevel = async (db: Pool) => {
        const { rows } = await db.query(`select current_setting('transaction_isolation') as level`)
        seen.push(rows[0].level)
      }
      const report = await explore({ url, isolation, actors: { alice: readLevel } })
      expect(seen).toEqual([isolation])
      expect(report.isolation).toBe(isolation)
    },
  )
})
