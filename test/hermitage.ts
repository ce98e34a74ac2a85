/**
 * The anomalies of Hermitage, Martin Kleppmann's suite of isolation tests (https://github.com/ept/hermitage, CC BY 4.0): its
 * orders, its numbers, and what it documents of PostgreSQL, written anew for a table of ours. Where it has an order for one
 * level only, the other levels here are what its table of levels implies.
 */
export const levels = ['read committed', 'repeatable read', 'serializable'] as const
export type Level = (typeof levels)[number]

export const table = 'create table item (id int primary key, n int) with (autovacuum_enabled = off)'
export const rows = 'insert into item values (1, 10), (2, 20)'

export type Session = 'T1' | 'T2' | 'T3'

/**
 * The result of a step: `1=10 2=20` or `none` was read, `1 row` was written, `waits for T1`, `40001 …`, `done` for the end of
 * a transaction; then the results of the sessions that go on because of it. `-`: the transaction has failed before, so the
 * step is not run. Three results if the levels differ.
 */
export type Answer = string | readonly [readCommitted: string, repeatableRead: string, serializable: string]

/** BEGIN stands before the first step of each session. */
export type Step = readonly [session: Session, sql: string, answer: Answer]

/** The results that the sessions received, by statement, and the content of the table afterwards. */
export interface Seen {
  readonly T1: readonly string[]
  readonly T2: readonly string[]
  readonly T3: readonly string[]
  readonly left: string
}

export interface Case {
  readonly name: string
  readonly steps: readonly Step[]
  /** The content of the table afterwards. */
  readonly left: Answer
  /** True if the anomaly has occurred, in whatever order the steps were run. */
  readonly isAnomaly: (seen: Seen) => boolean
  /** Levels that do not prevent it. */
  readonly allowedAt: readonly Level[]
  /** For an anomaly that no level of PostgreSQL allows: the results of a database that allows it. */
  readonly elsewhere?: Partial<Seen>
  /** This order shows the anomaly at no level, since its transaction is rolled back. Other orders do. */
  readonly isHarmless?: boolean
  /** The most preemptions to search for, if all orders are too many for a test. */
  readonly preemptions?: number
}

const read = (id: number) => `select * from item where id = ${id}`
const readWhere = (condition: string) => `select * from item where ${condition}`
const readAll = 'select * from item'
const write = (id: number, n: number | string) => `update item set n = ${n} where id = ${id}`
const insert = (id: number, n: number) => `insert into item values (${id}, ${n})`
const remove = (n: number) => `delete from item where n = ${n}`

const UPDATED = '40001 concurrent update'
const DEPENDENT = '40001 read/write dependencies among transactions'
const belowRepeatableRead = ['read committed'] as const
const belowSerializable = ['read committed', 'repeatable read'] as const

/** True if the session's transaction has committed, or rolled back on its own request. */
const hasEnded = (answers: readonly string[]) => answers.includes('done')

export const cases: readonly Case[] = [
  {
    name: 'G0: dirty write',
    steps: [
      ['T1', write(1, 11), '1 row'],
      ['T2', write(1, 12), 'waits for T1'],
      ['T1', write(2, 21), '1 row'],
      ['T1', 'commit', ['done, T2: 1 row', `done, T2: ${UPDATED}`, `done, T2: ${UPDATED}`]],
      ['T1', readAll, '1=11 2=21'],
      ['T2', write(2, 22), ['1 row', '-', '-']],
      ['T2', 'commit', ['done', '-', '-']],
    ],
    left: ['1=12 2=22', '1=11 2=21', '1=11 2=21'],
    isAnomaly: ({ T1, left }) =>
      [T1[3], left].some((state) => state === '1=11 2=22' || state === '1=12 2=21'),
    allowedAt: [],
    elsewhere: { T1: ['1 row', '1 row', 'done', '1=12 2=21'] },
  },
  {
    name: 'G1a: aborted read',
    steps: [
      ['T1', write(1, 101), '1 row'],
      ['T2', readAll, '1=10 2=20'],
      ['T1', 'rollback', 'done'],
      ['T2', readAll, '1=10 2=20'],
      ['T2', 'commit', 'done'],
    ],
    left: '1=10 2=20',
    isAnomaly: ({ T2 }) => T2.some((answer) => answer.includes('1=101')),
    allowedAt: [],
    elsewhere: { T2: ['1=101 2=20', '1=10 2=20', 'done'] },
  },
  {
    name: 'G1b: intermediate read',
    steps: [
      ['T1', write(1, 101), '1 row'],
      ['T2', readAll, '1=10 2=20'],
      ['T1', write(1, 11), '1 row'],
      ['T1', 'commit', 'done'],
      ['T2', readAll, ['1=11 2=20', '1=10 2=20', '1=10 2=20']],
      ['T2', 'commit', 'done'],
    ],
    left: '1=11 2=20',
    isAnomaly: ({ T2 }) => T2.some((answer) => answer.includes('1=101')),
    allowedAt: [],
    elsewhere: { T2: ['1=101 2=20', '1=11 2=20', 'done'] },
  },
  {
    name: 'G1c: circular information flow',
    steps: [
      ['T1', write(1, 11), '1 row'],
      ['T2', write(2, 22), '1 row'],
      ['T1', read(2), '2=20'],
      ['T2', read(1), '1=10'],
      ['T1', 'commit', 'done'],
      // Neither saw the other: at SERIALIZABLE that is one too few.
      ['T2', 'commit', ['done', 'done', DEPENDENT]],
    ],
    left: ['1=11 2=22', '1=11 2=22', '1=11 2=20'],
    isAnomaly: ({ T1, T2 }) => T1[1] === '2=22' && T2[1] === '1=11',
    allowedAt: [],
    elsewhere: { T1: ['1 row', '2=22', 'done'], T2: ['1 row', '1=11', 'done'] },
  },
  {
    name: 'OTV: observed transaction vanishes',
    steps: [
      ['T1', write(1, 11), '1 row'],
      ['T1', write(2, 19), '1 row'],
      ['T2', write(1, 12), 'waits for T1'],
      ['T1', 'commit', ['done, T2: 1 row', `done, T2: ${UPDATED}`, `done, T2: ${UPDATED}`]],
      ['T3', read(1), '1=11'],
      ['T2', write(2, 18), ['1 row', '-', '-']],
      ['T3', read(2), '2=19'],
      ['T2', 'commit', ['done', '-', '-']],
      ['T3', read(2), ['2=18', '2=19', '2=19']],
      ['T3', read(1), ['1=12', '1=11', '1=11']],
      ['T3', 'commit', 'done'],
    ],
    left: ['1=12 2=18', '1=11 2=19', '1=11 2=19'],
    // A later read may see newer versions only.
    isAnomaly: ({ T3, left }) => {
      const ages = T3.slice(0, 4).map((answer) =>
        ['1=10', '2=20'].includes(answer) ? 0 : left.split(' ').includes(answer) ? 2 : 1,
      )
      return ages.some((age, i) => age < (ages[i - 1] ?? 0))
    },
    allowedAt: [],
    elsewhere: { T3: ['1=12', '2=19', '2=18', '1=12', 'done'], left: '1=12 2=18' },
    // T3 between the two writes of T2 is one.
    preemptions: 1,
  },
  {
    name: 'PMP: predicate-many-preceders',
    steps: [
      ['T1', readWhere('n = 30'), 'none'],
      ['T2', insert(3, 30), '1 row'],
      ['T2', 'commit', 'done'],
      ['T1', readWhere('n % 3 = 0'), ['3=30', 'none', 'none']],
      ['T1', 'commit', 'done'],
    ],
    left: '1=10 2=20 3=30',
    isAnomaly: ({ T1 }) => T1[0] === 'none' && T1[1] === '3=30' && hasEnded(T1),
    allowedAt: belowRepeatableRead,
  },
  {
    name: 'PMP, write predicate',
    steps: [
      ['T1', 'update item set n = n + 10', '2 rows'],
      ['T2', remove(20), 'waits for T1'],
      ['T1', 'commit', ['done, T2: 0 rows', `done, T2: ${UPDATED}`, `done, T2: ${UPDATED}`]],
      ['T2', readWhere('n = 20'), ['1=20', '-', '-']],
      ['T2', 'commit', ['done', '-', '-']],
    ],
    left: '1=20 2=30',
    // The transaction has deleted all of these rows.
    isAnomaly: ({ T2 }) => T2[1] !== undefined && T2[1] !== 'none' && hasEnded(T2),
    allowedAt: belowRepeatableRead,
  },
  {
    name: 'P4: lost update',
    steps: [
      ['T1', read(1), '1=10'],
      ['T2', read(1), '1=10'],
      ['T1', write(1, 11), '1 row'],
      ['T2', write(1, 11), 'waits for T1'],
      ['T1', 'commit', ['done, T2: 1 row', `done, T2: ${UPDATED}`, `done, T2: ${UPDATED}`]],
      ['T2', 'commit', ['done', '-', '-']],
    ],
    left: '1=11 2=20',
    isAnomaly: ({ T1, T2 }) => [T1, T2].every((one) => one[0] === '1=10' && hasEnded(one)),
    allowedAt: belowRepeatableRead,
  },
  {
    name: 'G-single: read skew',
    steps: [
      ['T1', read(1), '1=10'],
      ['T2', read(1), '1=10'],
      ['T2', read(2), '2=20'],
      ['T2', write(1, 12), '1 row'],
      ['T2', write(2, 18), '1 row'],
      ['T2', 'commit', 'done'],
      ['T1', read(2), ['2=18', '2=20', '2=20']],
      ['T1', 'commit', 'done'],
    ],
    left: '1=12 2=18',
    isAnomaly: ({ T1 }) => (T1[0] === '1=10') !== (T1[1] === '2=20') && hasEnded(T1),
    allowedAt: belowRepeatableRead,
  },
  {
    name: 'G-single, predicate dependencies',
    steps: [
      ['T1', readWhere('n % 5 = 0'), '1=10 2=20'],
      ['T2', 'update item set n = 12 where n = 10', '1 row'],
      ['T2', 'commit', 'done'],
      ['T1', readWhere('n % 3 = 0'), ['1=12', 'none', 'none']],
      ['T1', 'commit', 'done'],
    ],
    left: '1=12 2=20',
    isAnomaly: ({ T1 }) => T1[0] === '1=10 2=20' && T1[1] === '1=12' && hasEnded(T1),
    allowedAt: belowRepeatableRead,
  },
  {
    name: 'G-single, write predicate',
    steps: [
      ['T1', read(1), '1=10'],
      ['T2', readAll, '1=10 2=20'],
      ['T2', write(1, 12), '1 row'],
      ['T2', write(2, 18), '1 row'],
      ['T2', 'commit', 'done'],
      ['T1', remove(20), ['0 rows', UPDATED, UPDATED]],
      ['T1', 'commit', ['done', '-', '-']],
    ],
    left: '1=12 2=18',
    isAnomaly: ({ T1 }) => T1[0] === '1=10' && T1[1] === '0 rows' && hasEnded(T1),
    allowedAt: belowRepeatableRead,
  },
  {
    // The order is the suite's for FoundationDB. It has none for PostgreSQL.
    name: 'G-single, write predicate, interrupted',
    steps: [
      ['T1', read(1), '1=10'],
      ['T2', readAll, '1=10 2=20'],
      ['T2', write(1, 12), '1 row'],
      ['T1', remove(20), '1 row'],
      ['T2', write(2, 18), 'waits for T1'],
      ['T1', 'rollback', 'done, T2: 1 row'],
      ['T2', 'commit', 'done'],
    ],
    left: '1=12 2=18',
    isAnomaly: ({ T1 }) => T1[0] === '1=10' && T1[1] === '0 rows',
    allowedAt: belowRepeatableRead,
    isHarmless: true,
  },
  {
    name: 'G2-item: write skew',
    steps: [
      ['T1', readWhere('id in (1, 2)'), '1=10 2=20'],
      ['T2', readWhere('id in (1, 2)'), '1=10 2=20'],
      ['T1', write(1, 11), '1 row'],
      ['T2', write(2, 21), '1 row'],
      ['T1', 'commit', 'done'],
      ['T2', 'commit', ['done', 'done', DEPENDENT]],
    ],
    left: ['1=11 2=21', '1=11 2=21', '1=11 2=20'],
    isAnomaly: ({ T1, T2 }) => [T1, T2].every((one) => one[0] === '1=10 2=20' && hasEnded(one)),
    allowedAt: belowSerializable,
  },
  {
    name: 'G2: anti-dependency cycle',
    steps: [
      ['T1', readWhere('n % 3 = 0'), 'none'],
      ['T2', readWhere('n % 3 = 0'), 'none'],
      ['T1', insert(3, 30), '1 row'],
      ['T2', insert(4, 42), '1 row'],
      ['T1', 'commit', 'done'],
      ['T2', 'commit', ['done', 'done', DEPENDENT]],
    ],
    left: ['1=10 2=20 3=30 4=42', '1=10 2=20 3=30 4=42', '1=10 2=20 3=30'],
    isAnomaly: ({ T1, T2 }) => [T1, T2].every((one) => one[0] === 'none' && hasEnded(one)),
    allowedAt: belowSerializable,
  },
  {
    name: 'G2, two anti-dependency edges',
    steps: [
      ['T1', readAll, '1=10 2=20'],
      ['T2', write(2, 'n + 5'), '1 row'],
      ['T2', 'commit', 'done'],
      ['T3', readAll, '1=10 2=25'],
      ['T3', 'commit', 'done'],
      ['T1', write(1, 0), ['1 row', '1 row', DEPENDENT]],
      ['T1', 'commit', ['done', 'done', '-']],
    ],
    left: ['1=0 2=25', '1=0 2=25', '1=10 2=25'],
    // T1 was before T2, T2 before T3, and T3 before T1.
    isAnomaly: ({ T1, T2, T3 }) =>
      T1[0] === '1=10 2=20' && T3[0] === '1=10 2=25' && [T1, T2, T3].every(hasEnded),
    allowedAt: belowSerializable,
  },
]
