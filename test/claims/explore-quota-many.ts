import assert from 'node:assert/strict'
import type { Pool } from 'pg'
import { it } from 'vitest'
import { Quota } from '../../src/claims/quota/quota.js'
import { forgetQuotas, takeQuotas, verifyQuota } from '../../src/claims/quota/quota-statements.js'
import type { Outcome } from '../../src/testing/gate/actor.js'
import { type Depth, exploredAcquire } from './explored-acquire.js'
import { EARLIER } from './explored-claims.js'

const LIMIT = 10

/** Windows of a day. */
const DAYS = { everyUs: 86_400_000_000, fromUs: 0 }

interface Spec {
  readonly ids?: Readonly<Record<string, string>>
  readonly per?: Readonly<Record<string, object>>
}

type Amounts = Readonly<Record<string, number>>

/** The result of each subject, by its name. */
type SubjectResults = Readonly<Record<string, { readonly state: string; readonly used?: number }>>

/** Takes of several subjects in one statement, which wait for nobody, beside whatever may be in their way. */
export function describeManySchedules(bound: Depth): void {
  const { fixture, asProcess, exploreAll, rowsOf, value } = exploredAcquire(bound)

  const has = (used: Amounts) => (db: Pool, schema: string) =>
    db.query(
      Object.entries(used)
        .map(
          ([subject, amount]) => `
            insert into ${schema}.quota (name, subject, starts_at, ends_at, granted_limit, used, unlisted) values
              ('points', '${subject}', '-infinity', 'infinity', ${LIMIT}, ${amount}, ${amount})`,
        )
        .join(';'),
    )

  /** In the order of their names, which is the same for everybody. */
  const takesMany = (amounts: Amounts, { ids = {}, per = {} }: Spec = {}) =>
    asProcess(async ({ database }): Promise<SubjectResults> => {
      const subjects = Object.keys(amounts).sort()
      const asked = subjects.map((subject) => ({
        ...{ subject, limit: LIMIT, amounts: `{${amounts[subject]}}` },
        ...(ids[subject] === undefined ? {} : { ids: `{${ids[subject]}}` }),
        ...(per[subject] === undefined ? {} : { per: per[subject] }),
      }))
      const [row] = await database.send(takeQuotas, ['points', JSON.stringify(asked), '1000'])
      const results: { state: string; takes?: { state: string; used: number }[] }[] = JSON.parse(
        `${row?.result}`,
      )
      return Object.fromEntries(
        subjects.map((subject, n) => [subject, results[n]?.takes?.[0] ?? results[n]]),
      ) as SubjectResults
    })
  /** In a transaction, in the order in which they are named. */
  const joins = (amounts: Amounts) =>
    asProcess(({ database, transaction }) =>
      transaction(async (tx): Promise<SubjectResults> => {
        const results: Record<string, SubjectResults[string]> = {}
        const points = new Quota(database, 'points', { limit: LIMIT })
        for (const [subject, amount] of Object.entries(amounts)) {
          const { ok: granted, used } = await points.tryTake(subject, amount, { tx })
          results[subject] = { state: granted ? 'taken' : 'refused', used }
        }
        return results
      }),
    )
  const forgets = asProcess(async ({ database }) => {
    await database.send(forgetQuotas, ['10'])
    return {}
  })

  /** Checks that all results fit the rows, that no subject is over its limit, and that no request was refused that fits. */
  async function expectExact(
    db: Pool,
    outcomes: Readonly<Record<string, Outcome>>,
    before: Amounts,
    asked: Readonly<Record<string, Amounts>>,
  ): Promise<SubjectResults[]> {
    const verify = {
      text: verifyQuota.text.replaceAll('{schema}', fixture.schema.name),
      values: ['points', null, null, '1001'],
    }
    assert.deepEqual((await db.query(verify)).rows, [])
    const used: Record<string, number> = { ...before }
    const results: SubjectResults[] = []
    for (const [name, amounts] of Object.entries(asked)) {
      const answer = value(outcomes[name]) as SubjectResults
      results.push(answer)
      for (const [subject, { state, used: seen }] of Object.entries(answer)) {
        const amount = amounts[subject] ?? 0
        if (state === 'taken') used[subject] = (used[subject] ?? 0) + amount
        if (state === 'refused') assert(Number(seen) + amount > LIMIT, `${subject} was refused what fits`)
      }
    }
    const rows = await rowsOf(
      db,
      'select subject, (used + overdrawn)::int as used from {schema}.quota where used > 0',
    )
    assert.deepEqual(Object.fromEntries(rows.map(({ subject, used }) => [subject, used])), used)
    for (const amount of Object.values(used)) assert(amount <= LIMIT, `${amount} used`)
    return results
  }

  async function exploreMany(
    before: Amounts,
    asked: Readonly<Record<string, Amounts>>,
    actors: Readonly<Record<string, (db: Pool) => Promise<unknown>>>,
    check: (results: SubjectResults[]) => void = () => {},
    setup: (db: Pool, schema: string) => Promise<unknown> = has(before),
  ): Promise<void> {
    await exploreAll({
      before: setup,
      actors,
      invariant: async (db, outcomes) => check(await expectExact(db, outcomes, before, asked)),
      bound: bound(1),
    })
  }

  it('two over the same subjects: none waits, and of each the last is one’s', async () => {
    const ann = { a: 6, b: 1 }
    const bob = { a: 5, b: 2 }
    let busy = 0
    await exploreMany(
      { a: 2, b: 7 },
      { ann, bob },
      { ann: takesMany(ann), bob: takesMany(bob) },
      (results) => {
        for (const one of results) for (const { state } of Object.values(one)) if (state === 'busy') busy++
      },
    )
    assert(busy > 0)
  })

  it('beside a transaction that takes them in the opposite order: one is busy or decided, and nobody fails', async () => {
    const ann = { a: 3, b: 4 }
    const bob = { b: 7, a: 1 }
    let busy = 0
    await exploreMany({ a: 1, b: 2 }, { ann, bob }, { ann: takesMany(ann), bob: joins(bob) }, ([one]) => {
      if (one?.b?.state === 'busy') busy++
    })
    assert(busy > 0)
  })

  it('beside the first take of a subject', async () => {
    const ann = { a: 3, b: 4 }
    const bob = { b: 7 }
    await exploreMany({ a: 1 }, { ann, bob }, { ann: takesMany(ann), bob: joins(bob) }, ([one]) => {
      assert.equal(one?.a?.state, 'taken')
    })
  })

  it('under an id that another subject is about to have', async () => {
    const ann = { a: 3, b: 4 }
    const bob = { c: 4 }
    await exploreMany(
      { a: 1, b: 1, c: 1 },
      { ann, bob },
      { ann: takesMany(ann, { ids: { b: 'x' } }), bob: takesMany(bob, { ids: { c: 'x' } }) },
      ([one, other]) => {
        const states = [one?.b?.state, other?.c?.state].sort()
        assert.deepEqual(states, ['mismatch', 'taken'])
      },
    )
  })

  it('beside maintenance, which forgets the id of one and the row of another', async () => {
    const ann = { a: 4, b: 4 }
    const before = { a: 5 }
    await exploreMany(
      before,
      { ann },
      { ann: takesMany(ann, { ids: { a: 'x' }, per: { b: DAYS } }), maintenance: forgets },
      ([one]) => assert(['known', 'taken', 'busy'].includes(`${one?.a?.state}`)),
      async (db, schema) => {
        await has(before)(db, schema)
        await db.query(`
          update ${schema}.quota set unlisted = 1 where subject = 'a';
          insert into ${schema}.quota_entry (name, id, subject, state, requested, amount, starts_at, created_at, forget_at) values
            ('points', 'x', 'a', 'taken', 4, 4, '-infinity', '${EARLIER}', '${EARLIER}');
          insert into ${schema}.quota (name, subject, starts_at, ends_at, granted_limit, used, unlisted) values
            ('points', 'b', '2025-12-20T00:00:00Z', '2025-12-21T00:00:00Z', ${LIMIT}, 9, 9)`)
      },
    )
  })
}
