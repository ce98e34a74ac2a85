import fc from 'fast-check'
import type { Piece, Program } from './programs.js'

const key = fc.integer({ min: 1, max: 3 })
const by = fc.integer({ min: 1, max: 9 })

type Weighted = { readonly weight: number; readonly arbitrary: fc.Arbitrary<string> }

const make = (weight: number, template: (id: number, n: number) => string, id = key): Weighted => ({
  weight,
  arbitrary: fc.tuple(id, by).map(([one, other]) => template(one, other)),
})

/** Statements on one row, which others must wait for or see. */
const contested = fc.oneof(
  make(4, (_, n) => `update a set n = n * 2 + ${n} where id = 1 returning n`),
  make(1, (_, n) => `update a set n = n + ${n} where id in (1, 2)`),
  make(1, (_, n) => `update a set n = n + ${n} where n < 5`),
  make(1, () => 'update a set n = (select sum(n) from a) + 1 where id = 1 returning n'),
  make(1, () => 'delete from a where id = 1 returning n'),
  make(1, (u) => `update a set u = ${u * 10} where id = 1`),
  make(1, (_, n) => `insert into a values (1, ${n})`),
  make(1, (_, n) => `insert into a values (1, ${n}) on conflict do nothing returning n`),
  make(
    2,
    (_, n) => `insert into a values (1, ${n}) on conflict (id) do update set n = a.n + 100 returning n`,
  ),
  make(2, () => 'select n from a where id = 1 for update'),
)

const other = fc.oneof(
  make(3, (id) => `select n from a where id = ${id}`),
  make(1, () => 'select count(*), sum(n) from a'),
  make(1, () => 'select id, n, u from a order by id'),
  make(1, () => 'select v from log order by v'),
  make(1, () => 'select count(*) from child'),
  make(1, (id) => `select n from a where id = ${id} for share`),
  make(1, () => 'select n from a where id = 1 for update nowait'),
  make(1, () => 'select id from a where n = 0 order by id limit 1 for update skip locked'),
  make(1, (id) => `select pg_advisory_xact_lock(${id})`),
  make(1, (id) => `select pg_try_advisory_xact_lock(${id})`),
  make(2, (id, n) => `update a set n = n + ${n} where id = ${id}`),
  make(1, (id) => `delete from a where id = ${id}`),
  make(1, (id, n) => `insert into a values (${id}, ${n}) on conflict do nothing`),
  make(1, (id, n) => `insert into a values (${id + 3}, 0, ${n * 10})`),
  make(1, (id) => `insert into log select n from a where id = ${id}`),
  make(1, (id) => `insert into log values (${id})`),
  make(1, (id) => `insert into child values (${id}, ${id})`),
  make(1, (id, n) => `insert into parent values (${id}, ${n}) on conflict do nothing`),
  make(1, (id, n) => `update parent set n = n + ${n} where id = ${id}`),
)

const transaction: fc.Arbitrary<Piece> = fc
  .tuple(
    fc.array(other, { maxLength: 1 }),
    contested,
    fc.array(other, { maxLength: 1 }),
    fc.constantFrom([], [], [], ['rollback']),
  )
  .map((parts) => parts.flat())

const actor: fc.Arbitrary<readonly Piece[]> = fc.oneof(
  { weight: 3, arbitrary: fc.tuple(transaction) },
  { weight: 1, arbitrary: fc.tuple(contested, other) },
  { weight: 1, arbitrary: fc.tuple(other, transaction) },
)

const programOf = (actors: fc.Arbitrary<Program['actors']>): fc.Arbitrary<Program> =>
  fc.record({
    setup: fc.constant('insert into a values (1, 0, 10), (2, 0, 20); insert into parent values (1, 0)'),
    actors,
    isolation: fc.constantFrom('read committed', 'read committed', 'read committed', 'repeatable read'),
  })

/** Two actors with few statements on the same few rows. Each writes or locks the first row. */
export const twoActors: fc.Arbitrary<Program> = programOf(fc.tuple(actor, actor))

/** Three actors with fewer statements, since the orders would be too many. */
export const threeActors: fc.Arbitrary<Program> = programOf(
  fc.tuple(fc.tuple(fc.tuple(contested, other)), fc.tuple(fc.tuple(contested, other)), fc.tuple(contested)),
)
