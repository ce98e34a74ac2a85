import { describe, expect, it } from 'vitest'
import { openTables } from '../../../test/tables/open-tables.js'
import { InvalidInputError } from '../../errors.js'
import { countTraffic } from '../../testing/index.js'
import type { MonitorOptions } from './monitor-options.js'

const fixture = openTables(
  `create type {shop}.state as enum ('PENDING', 'PROCESSING', 'FAILED');
   create collation {shop}.folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
   create domain {shop}.folded_text as text collate {shop}.folded;
   create table {shop}.item (
     id int primary key, status text, mood {shop}.state, code varchar(3), updated_at timestamptz, local timestamp, day date, lease_until timestamptz,
     fixed char(12), amount numeric(5, 1), folded text collate {shop}.folded, folded_too {shop}.folded_text, coarse timestamptz(0), attempts int, tries text, fence bigint, small int, error text, short varchar(5), made int generated always as (1) stored
   );
   create table {shop}.bare (status text, updated_at timestamptz)`,
)
const { at } = fixture
let count = 0
const base = () => ({
  table: at('item'),
  stuck: 'PROCESSING',
  timeColumn: 'updated_at',
  olderThanMs: 1_000,
  action: 'requeue',
  requeueTo: 'PENDING',
})
const define = (options: object, name = `m${++count}`) =>
  fixture.dibs.monitor(name, { ...base(), ...options } as MonitorOptions)
const fail = { action: 'fail', requeueTo: undefined, failTo: 'FAILED' }
const errorOf = (work: () => unknown): unknown => {
  try {
    return work()
  } catch (error) {
    return error
  }
}

describe('refused where it is defined', () => {
  it.each([
    ['table', { table: 7 }, 'must be the name of a table, not a number'],
    ['stuck', { stuck: [] }, 'must be 1 to 20 states, not 0'],
    ['stuck', { stuck: null }, 'must be a state: a string, a number or a boolean, not null'],
    ['stuck', { stuck: ['a', undefined] }, 'not undefined'],
    ['timeColumn', { timeColumn: undefined }, 'must be a string, not undefined'],
    ['timeZone', { timeZone: '+01:00' }, 'must be the name of a time zone'],
    ['olderThanMs', { olderThanMs: 0 }, 'must be a whole number of milliseconds from 1 to'],
    ['olderThanMs', { olderThanMs: undefined }, 'not undefined'],
    ['everyMs', { everyMs: 0 }, 'must be a whole number of milliseconds from 100 to'],
    ['batch', { batch: 1_001 }, 'must be a whole number from 1 to 1000, not 1001'],
    ['batch', { batch: '1' }, 'not "1"'],
    ['action', { action: undefined }, "must be 'requeue', 'fail' or a function, not undefined"],
    ['action', { action: 'retry' }, 'not "retry"'],
    ['requeueTo', { requeueTo: undefined }, "must be given with the action 'requeue'"],
    ['requeueTo', { requeueTo: 'PROCESSING' }, 'must not be one of the states in `stuck`'],
    ['requeueTo', { requeueTo: {} }, 'must be a state'],
    ['requeueTo', { ...fail, requeueTo: 'PENDING' }, "has no effect with the action 'fail'"],
    ['failTo', { ...fail, failTo: undefined }, "must be given with the action 'fail'"],
    ['failTo', { attemptsColumn: 'attempts' }, 'must be given with `attemptsColumn`'],
    ['attemptsColumn', { ...fail, attemptsColumn: 'attempts' }, 'has no effect'],
    ['maxAttempts', { maxAttempts: 3 }, 'needs `attemptsColumn`'],
    [
      'maxAttempts',
      { attemptsColumn: 'attempts', failTo: 'FAILED', maxAttempts: 0 },
      'must be a whole number from 1 to 1000000',
    ],
    ['countsAttempts', { countsAttempts: true }, 'needs `attemptsColumn`'],
    ['countsAttempts', { attemptsColumn: 'attempts', failTo: 'FAILED', countsAttempts: 1 }, 'true or false'],
    ['errorColumn', { errorColumn: 'error' }, 'needs `failTo`'],
    ['reason', { ...fail, reason: 'gone' }, 'needs `errorColumn`'],
    ['reason', { ...fail, errorColumn: 'error', reason: 7 }, 'must be a string, not a number'],
    ['set', { set: [] }, 'must be an object of columns and values'],
    ['olderThen', { olderThen: 1 }, 'Unknown option'],
    ['tx', { tx: {} }, 'Unknown option'],
  ])('%s: %j', (field, options, problem) => {
    const error = errorOf(() => define(options))
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error).toMatchObject({ field, message: expect.stringContaining(problem) })
  })

  it('a name that another has', () => {
    expect(define({}, 'taken')).toMatchObject({ name: 'taken', everyMs: 60_000 })
    expect(() => define({}, 'taken')).toThrow('is the name of another monitor')
    expect(define({ everyMs: 300_000 }, 'free')).toMatchObject({ name: 'free', everyMs: 300_000 })
  })

  it('an empty name', () => {
    expect(() => define({}, '')).toThrow('`name` must not be empty')
  })

  it('defining sends nothing', async () => {
    const traffic = await countTraffic(fixture.pool, async () => define({ table: 'nowhere.at_all' }))
    expect(traffic).toMatchObject({ roundTrips: 0 })
  })
})

describe('refused at the first run', () => {
  it.each([
    ['table', { table: 'nowhere.item' }, 'there is no such table'],
    ['table', { table: 'bare' }, 'has no primary key'],
    ['statusColumn', { statusColumn: 'state' }, 'names the column "state"'],
    ['timeColumn', { timeColumn: 'updatedAt' }, 'Did you mean updated_at?'],
    ['timeColumn', { timeColumn: 'day' }, 'must be of the type timestamptz, or timestamp with `timeZone`'],
    ['timeZone', { timeColumn: 'local' }, 'does not say in which time zone it was written'],
    ['timeZone', { timeZone: 'UTC' }, 'must not be given'],
    ['leaseColumn', { leaseColumn: 'coarse' }, 'and keep milliseconds'],
    ['leaseColumn', { leaseColumn: 'lease_untl' }, 'Did you mean lease_until?'],
    ['attemptsColumn', { attemptsColumn: 'tries', failTo: 'FAILED' }, 'smallint, integer or bigint'],
    ['fenceColumn', { fenceColumn: 'small' }, 'must be of the type bigint'],
    ['stampColumn', { stampColumn: 'day' }, 'must be of the type timestamptz'],
    ['errorColumn', { ...fail, errorColumn: 'errr' }, 'Did you mean error?'],
    ['reason', { ...fail, errorColumn: 'short' }, 'must be at most 5 characters long'],
    ['stuck', { statusColumn: 'mood', stuck: 'WORKING' }, 'must be one of PENDING, PROCESSING, FAILED'],
    ['requeueTo', { statusColumn: 'mood', requeueTo: 'NEW' }, 'must be one of PENDING, PROCESSING, FAILED'],
    ['failTo', { ...fail, statusColumn: 'mood', failTo: 'X' }, 'must be one of'],
    ['stuck', { statusColumn: 'code', requeueTo: 'x' }, 'must be at most 3 characters'],
    ['set.status', { set: { status: 'x' } }, '`statusColumn` sets it'],
    ['set.id', { set: { id: 1 } }, 'it identifies the row'],
    ['set.made', { set: { made: 1 } }, 'the database makes it'],
    ['set.nothing', { set: { nothing: 1 } }, 'names the column "nothing"'],
    ['errorColumn', { ...fail, errorColumn: 'status' }, '`statusColumn` sets it'],
    ['failTo', { action: async () => 'leave', statusColumn: 'mood', failTo: 'X' }, 'must be one of'],
    ['requeueTo', { statusColumn: 'fixed', requeueTo: 'PROCESSING ' }, 'stores it as one of them'],
    ['failTo', { ...fail, statusColumn: 'fixed', failTo: 'PROCESSING ' }, 'stores it as one of them'],
    ['requeueTo', { statusColumn: 'amount', stuck: [7, 1], requeueTo: '1.0' }, 'stores it as one of them'],
    ['requeueTo', { statusColumn: 'amount', stuck: 1, requeueTo: '1e0' }, 'stores it as one of them'],
    [
      'requeueTo',
      { statusColumn: 'folded', requeueTo: 'Processing' },
      'The column "folded" stores it as one of them',
    ],
    [
      'requeueTo',
      { statusColumn: 'folded', stuck: ['x', 'PROCESSING'], requeueTo: 'processing' },
      'The column "folded" stores it as one of them',
    ],
    [
      'requeueTo',
      { statusColumn: 'folded_too', requeueTo: 'Processing' },
      'The column "folded_too" stores it as one of them',
    ],
    [
      'failTo',
      { action: async () => 'leave', statusColumn: 'fixed', failTo: 'PROCESSING  ' },
      'stores it as one of them',
    ],
  ])('%s: %j', async (field, options, problem) => {
    const table = 'table' in options ? (options.table === 'bare' ? at('bare') : options.table) : at('item')
    const error = await define({ ...options, table })
      .run()
      .catch((error) => error)
    expect(error).toBeInstanceOf(InvalidInputError)
    expect(error).toMatchObject({ field, message: expect.stringContaining(problem) })
  })
})

it.each([
  ['status', {}],
  ['status', { requeueTo: 'processing' }],
  ['mood', { failTo: 'FAILED' }],
  ['fixed', { requeueTo: 'PROCESSED' }],
  ['amount', { stuck: 1, requeueTo: '1.1' }],
  ['folded', {}],
])(
  'a state that is another one to the column is none that is stuck: %s %j',
  async (statusColumn, options) => {
    expect(await define({ statusColumn, ...options }).run()).toMatchObject({ requeued: 0 })
  },
)
