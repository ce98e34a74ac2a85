// Cost of dibs.aggregate and dibs.singleFlight, compared with the same statements written by hand.
import pg from 'pg'
import { Dibs } from '../dist/index.js'

const PARENTS = 1_000
const CHILDREN = 20

export async function upkeepContest(url) {
  const pool = new pg.Pool({ connectionString: url, max: 16 })
  pool.on('error', () => {}) // of connections that end with the server
  const dibs = await Dibs.open({ pool, listen: false })
  await pool.query(`
    drop table if exists bench_child, bench_parent;
    create table bench_parent (id int primary key, total int not null default 0, done int not null default 0);
    create table bench_child (id bigint generated always as identity primary key, parent_id int not null, status text not null);
    insert into bench_parent select generate_series(1, ${PARENTS});
    insert into bench_child (parent_id, status) select 1 + n % ${PARENTS}, 'open' from generate_series(1, ${PARENTS * CHILDREN}) n;
    create index on bench_child (parent_id);
    analyze bench_parent, bench_child;
    create table if not exists bench_cache (key text primary key, value json not null, fresh_until timestamptz not null);
    insert into bench_cache values ('k', '{"a": 1}', now() + interval '1 day') on conflict do nothing`)
  const totals = dibs.aggregate('bench', {
    parent: 'bench_parent',
    child: 'bench_child',
    foreignKey: 'parent_id',
    columns: { total: 'count(*)', done: "count(*) filter (where status = 'done')" },
  })
  await totals.recompute(1)
  await dibs.singleFlight('k', { ttlMs: 86_400_000, refreshEarly: 0 }, async () => ({ a: 1 }))

  /** A child is changed and its parent made right, as `how` does it, in one transaction. */
  const change = (parentOf, how) => () =>
    dibs.transaction(async (tx) => {
      const parent = parentOf()
      await tx.client.query({
        name: 'bench-change',
        text: "update bench_child set status = 'done' where id = $1",
        values: [parent + PARENTS * Math.floor(Math.random() * CHILDREN)],
      })
      await how(tx, parent)
    })
  const ways = (parentOf) => ({
    'by hand: for update, then count': change(parentOf, async ({ client }, parent) => {
      const values = [parent]
      await client.query({
        name: 'bench-lock',
        text: 'select from bench_parent where id = $1 for no key update',
        values,
      })
      await client.query({
        name: 'bench-count',
        text: `update bench_parent set (total, done) = (select count(*), count(*) filter (where status = 'done') from bench_child where parent_id = $1) where id = $1`,
        values,
      })
    }),
    recompute: change(parentOf, (tx, parent) => totals.recompute(parent, { tx })),
    markDirty: change(parentOf, (tx, parent) => totals.markDirty(parent, { tx })),
  })
  const anyOf = () => 1 + Math.floor(Math.random() * PARENTS)
  const one = () => 1

  return {
    contests: [
      { name: 'aggregate: 1,000 parents', inFlight: 1, contestants: ways(anyOf) },
      { name: 'aggregate: 1,000 parents', inFlight: 8, contestants: ways(anyOf) },
      { name: 'aggregate: 1 parent', inFlight: 8, contestants: ways(one) },
      {
        name: 'single-flight: a value that is there',
        inFlight: 1,
        contestants: {
          'by hand: select': () =>
            pool.query({
              name: 'bench-cached',
              text: 'select value from bench_cache where key = $1 and fresh_until > now()',
              values: ['k'],
            }),
          singleFlight: () => dibs.singleFlight('k', { refreshEarly: 0 }, async () => ({ a: 2 })),
        },
      },
    ],
    async close() {
      await dibs.close()
      await pool.end()
    },
  }
}
