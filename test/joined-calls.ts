import type pg from 'pg'
import { claim, type Dibs, type Hold, job, type Lock, type Slot, type Tx } from '../src/index.js'
import type { Transaction } from '../src/postgres/transaction-types.js'
import { freshName } from './database.js'

/** The arguments of every joined call in the table below. */
export interface JoinedParts {
  readonly dibs: Dibs
  /** Held for the whole test. */
  readonly lock: Lock
  /** The schema of the tables `thing`, `parent` and `child`. */
  readonly schema: string
  /** The result of `prepareCall` for this call. */
  readonly slot?: Slot | undefined
  readonly hold?: Hold | undefined
  /** Functions inside of a call wait for it before they write. */
  readonly gate: Promise<void>
}

/** Calls whose functions wait at the gate, and calls of several statements: a COMMIT can cut them off in the middle. */
export const longCalls = [
  ...['dibs.once', 'dibs.onceDetailed', 'dibs.tryOnce', 'dibs.singleton', 'dibs.trySingleton'],
  ...['dibs.acquire', 'dibs.tryAcquire', 'dibs.voidSlot'],
  ...['jobs.addMany', 'tx.savepoint'],
]

/** Makes the tables and what else the calls need. */
export async function prepareJoinedCalls(dibs: Dibs, admin: pg.Pool, schema: string): Promise<void> {
  await admin.query(`create table if not exists ${schema}.thing (
    id text primary key, state text not null default 'new', n int not null default 10, version int not null default 1)`)
  await admin.query(
    `create table if not exists ${schema}.parent (id int primary key, children int not null default 0)`,
  )
  await admin.query(`create table if not exists ${schema}.child (
    id int primary key, parent_id int references ${schema}.parent (id), state text not null default 'new')`)
  await admin.query(`insert into ${schema}.thing (id) values ('known') on conflict do nothing`)
  await admin.query(`insert into ${schema}.parent values (1) on conflict do nothing`)
  await admin.query(`insert into ${schema}.child values (1, 1) on conflict do nothing`)
  const quota = quotaOf(dibs)
  const rate = dibs.rateLimit('joined', { algorithm: 'gcra', limit: 1_000_000, perMs: 1_000 })
  // A first use of each, so that later calls need no setup statements.
  await quota.take('known', 1, { id: 'known' })
  await rate.take('known')
  await dibs.kv.set('known', 1)
}

type Call = (parts: JoinedParts, tx: Tx, key: string) => Promise<unknown>

/** Every call that takes a transaction, by its name. */
export const joinedCalls: Readonly<Record<string, Call>> = {
  'kv.get': ({ dibs }, tx) => dibs.kv.get('known', { tx }),
  'kv.getMany': ({ dibs }, tx) => dibs.kv.getMany(['known'], { tx }),
  'kv.list': ({ dibs }, tx) => dibs.kv.list({ prefix: 'known' }, { tx }),
  'kv.set': ({ dibs }, tx, key) => dibs.kv.set(key, 1, { tx }),
  'kv.setIfAbsent': ({ dibs }, tx, key) => dibs.kv.setIfAbsent(key, 1, { tx }),
  'kv.compareAndSet': ({ dibs }, tx) => dibs.kv.compareAndSet('known', 1, 2, { tx }),
  'kv.patch': ({ dibs }, tx) => dibs.kv.patch('absent', { a: 1 }, { tx }),
  'kv.delete': ({ dibs }, tx) => dibs.kv.delete('known', { tx }),
  'dibs.once': (parts, tx, key) =>
    parts.dibs.once({ scope: 'joined', key, tx }, (own) => writeLate(parts, own, key)),
  'dibs.onceDetailed': (parts, tx, key) =>
    parts.dibs.onceDetailed({ scope: 'joined', key, tx }, (own) => writeLate(parts, own, key)),
  'dibs.tryOnce': (parts, tx, key) =>
    parts.dibs.tryOnce({ scope: 'joined', key, tx }, (own) => writeLate(parts, own, key)),
  'dibs.trySingleton': (parts, tx, key) =>
    parts.dibs.trySingleton({ scope: key, per: 'day', timeZone: 'UTC', tx }, (own) =>
      writeLate(parts, own, key),
    ),
  'dibs.tryAcquire': (parts, tx, key) =>
    parts.dibs.tryAcquire([quotaOf(parts.dibs).claim(key, 5), claim.lock(key)], { tx }, (own) =>
      writeLate(parts, own, key),
    ),
  'dibs.singleton': (parts, tx, key) =>
    parts.dibs.singleton({ scope: key, per: 'day', timeZone: 'UTC', tx }, (own) =>
      writeLate(parts, own, key),
    ),
  'dibs.acquire': (parts, tx, key) =>
    parts.dibs.acquire(
      [quotaOf(parts.dibs).claim(key, 5), claim.lock(key)],
      {
        tx,
      },
      (own) => writeLate(parts, own, key),
    ),
  'dibs.voidSlot': (parts, tx, key) =>
    parts.dibs.voidSlot({ scope: key, slot: expectPrepared(parts.slot), tx }, (own) =>
      writeLate(parts, own, key),
    ),
  'hold.settle': ({ hold }, tx) => expectPrepared(hold).settle(1, { tx }),
  'hold.void': ({ hold }, tx) => expectPrepared(hold).void({ tx }),
  'quota.take': ({ dibs }, tx, key) => quotaOf(dibs).take(key, 1, { tx }),
  'quota.tryTake': ({ dibs }, tx, key) => quotaOf(dibs).tryTake(key, 1, { tx }),
  'quota.reserve': ({ dibs }, tx, key) => quotaOf(dibs).reserve(key, 1, { tx }),
  'quota.tryReserve': ({ dibs }, tx, key) => quotaOf(dibs).tryReserve(key, 1, { tx }),
  'quota.peek': ({ dibs }, tx, key) => quotaOf(dibs).peek(key, { tx }),
  'quota.refund': ({ dibs }, tx) => quotaOf(dibs).refund('known', { tx }),
  'quota.settle': ({ dibs }, tx, key) => quotaOf(dibs).settle(key, 1, { tx }),
  'quota.void': ({ dibs }, tx, key) => quotaOf(dibs).void(key, { tx }),
  'rateLimit.take': ({ dibs }, tx, key) => rateOf(dibs).take(key, 1, { tx }),
  'rateLimit.tryTake': ({ dibs }, tx, key) => rateOf(dibs).tryTake(key, 1, { tx }),
  'rateLimit.peek': ({ dibs }, tx, key) => rateOf(dibs).peek(key, { tx }),
  'rows.lock': ({ dibs, schema }, tx) => dibs.rows.lock(`${schema}.thing`, ['known'], { tx }),
  'rows.update': ({ dibs, schema }, tx) =>
    dibs.rows.update(`${schema}.thing`, { id: 'known', version: 1 }, { state: 'held' }, { tx }),
  'rows.lastWriteWins': ({ dibs, schema }, tx) =>
    dibs.rows.lastWriteWins(`${schema}.thing`, 'known', { state: 'held' }, { tx }),
  'rows.insertOnce': ({ dibs, schema }, tx, key) =>
    dibs.rows.insertOnce(`${schema}.thing`, ['id'], { id: key }, { tx }),
  'rows.transition': ({ dibs, schema }, tx) =>
    dibs.rows.transition(`${schema}.thing`, 'known', { column: 'state', from: 'new', to: 'held' }, { tx }),
  'rows.claim': ({ dibs, schema }, tx) =>
    dibs.rows.claim(`${schema}.thing`, { where: { id: 'known' }, set: { state: 'held' }, tx }),
  'rows.adjust': ({ dibs, schema }, tx) => dibs.rows.adjust(`${schema}.thing`, 'known', { n: -1 }, { tx }),
  'aggregate.recompute': (parts, tx) => totalsOf(parts).recompute(1, { tx }),
  'aggregate.markDirty': (parts, tx) => totalsOf(parts).markDirty(1, { tx }),
  'aggregate.transition': (parts, tx) =>
    totalsOf(parts).transition(1, { column: 'state', from: 'new', to: 'held' }, { add: { children: 1 }, tx }),
  'aggregate.derived': (parts, tx) =>
    totalsOf(parts).derived(`${parts.schema}.${freshName('view')}`, { create: false, tx }),
  'jobs.add': ({ dibs }, tx) => jobsOf(dibs).add('later', { n: 1 }, { tx }),
  'jobs.addMany': ({ dibs }, tx) =>
    jobsOf(dibs).addMany(
      Array.from({ length: 2_500 }, (_, n) => ({ name: 'later' as const, input: { n } })),
      { tx },
    ),
  'lock.guard': ({ lock }, tx) => lock.guard(tx),
}

/** The joined calls that only the `tx` of `dibs.transaction` has. */
export const ownCalls: Readonly<
  Record<string, (parts: JoinedParts, tx: Transaction, key: string) => Promise<unknown>>
> = {
  ...joinedCalls,
  'tx.query': ({ schema }, tx, key) => tx.query(`insert into ${schema}.thing (id) values ($1)`, [key]),
  'tx.savepoint': (parts, tx, key) => tx.savepoint((own) => writeLate(parts, own, key)),
}

const quotaOf = (dibs: Dibs) => dibs.quota('joined', { limit: 1_000_000 })

const rateOf = (dibs: Dibs) => dibs.rateLimit('joined', { algorithm: 'gcra', limit: 1_000_000, perMs: 1_000 })

export const jobsOf = (dibs: Dibs) => dibs.jobs({ later: job<{ n: number }>({ queue: 'later' }) })

const totalsOf = ({ dibs, schema }: JoinedParts) =>
  dibs.aggregate(freshName('totals'), {
    parent: `${schema}.parent`,
    child: `${schema}.child`,
    foreignKey: 'parent_id',
    columns: { children: 'count(*)' },
  })

/** Makes what a call needs that ends something: a slot that was used, a reservation. */
export async function prepareCall(
  dibs: Dibs,
  name: string,
  key: string,
): Promise<Pick<JoinedParts, 'slot' | 'hold'>> {
  if (name === 'dibs.voidSlot') {
    let used: Slot | undefined
    await dibs.singleton({ scope: key, per: 'day', timeZone: 'UTC' }, async (_, slot) => {
      used = slot
    })
    return { slot: used }
  }
  if (name.startsWith('hold.')) return { hold: await quotaOf(dibs).reserve(key, 5, { leaseMs: 600_000 }) }
  return {}
}

function expectPrepared<T>(value: T | undefined): T {
  if (value === undefined) throw new Error('This call needs what prepareCall makes.')
  return value
}

/** Writes when the gate opens, in most cases after COMMIT was sent. */
async function writeLate({ gate, dibs }: JoinedParts, tx: Tx, key: string): Promise<number> {
  await gate
  await dibs.kv.set(key, 1, { tx })
  return 1
}

/** All rows that a joined call could have written, as one text: two that are the same have the same rows. */
export async function snapshot(admin: pg.Pool, schemas: readonly string[]): Promise<string> {
  const { rows: tables } = await admin.query<{ name: string }>(
    `select format('%I.%I', table_schema, table_name) as name from information_schema.tables
     where table_schema = any ($1) and table_type = 'BASE TABLE'
       and table_name not in ('lock', 'migration', 'worker', 'lane', 'job_held') and table_name not like 'job\\_history%'
     order by 1`,
    [schemas],
  )
  const parts: string[] = []
  for (const { name } of tables) {
    const { rows } = await admin.query(
      `select string_agg(t::text, E'\\n' order by t::text) as rows from ${name} t`,
    )
    parts.push(`${name}: ${rows[0].rows}`)
  }
  return parts.join('\n')
}
