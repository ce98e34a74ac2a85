import pg from 'pg'
import { afterAll, afterEach, beforeAll, beforeEach, describe } from 'vitest'
import { joinTransaction } from '../../src/postgres/join.js'
import { directUrl, freshName } from '../database.js'
import { describeAcquire } from './describe-acquire.js'
import { describeAnswers } from './describe-answers.js'
import { describeErrors } from './describe-errors.js'
import { describeKv } from './describe-kv.js'
import { describeLock } from './describe-lock.js'
import { describeOnce } from './describe-once.js'
import { describeOpenCalls } from './describe-open-calls.js'
import { describeRate } from './describe-rate.js'
import { describeRefusals } from './describe-refusals.js'
import { describeRows } from './describe-rows.js'
import { describeTransactions } from './describe-transactions.js'
import { describeValues } from './describe-values.js'
import type { Context, Harness, Library } from './harness.js'

/** bigint, json, jsonb, timestamptz, numeric, text[]: a program may parse these as it likes. */
const parsedTypes = [20, 114, 3802, 1184, 1700, 1009]

/** Parses these types in a way of the user's own until the suite has ended. */
function parseOtherwise(): void {
  const parsers = parsedTypes.map((type) => [type, pg.types.getTypeParser(type)] as const)
  beforeAll(() => {
    for (const type of parsedTypes) pg.types.setTypeParser(type, () => 'parsed by the user')
  })
  afterAll(() => {
    for (const [type, parse] of parsers) pg.types.setTypeParser(type, parse)
  })
}

/** Tests the same guarantees for every adapter. */
export function describeConformance(name: string, harness: Harness): void {
  describe(name, () => {
    parseOtherwise()
    const schema = freshName('adapter')
    const admin = new pg.Pool({ connectionString: directUrl, max: 2 })
    admin.on('error', () => {})
    let library: Library

    beforeAll(async () => {
      await admin.query(`create schema ${schema}`)
      await admin.query(
        `create table ${schema}.items (id text primary key, label text not null constraint items_label_once unique)`,
      )
    })
    beforeEach(async () => {
      library = await harness.open(schema)
    })
    afterEach(async () => {
      await library.close()
      await admin.query(`delete from ${schema}.items`)
    })
    afterAll(async () => {
      await admin.query(`drop schema ${schema} cascade`)
      await admin.end()
    })

    const context: Context = {
      schema,
      admin,
      harness,
      transaction: (fn, isolation) =>
        library.transaction(async (open) => {
          await fn(await joinTransaction(open.tx, { prepared: false }), open)
        }, isolation),
      impostors: () => library.impostors ?? {},
      async ids() {
        const { rows } = await admin.query(`select id from ${schema}.items order by id`)
        return rows.map(({ id }) => id)
      },
    }
    describe('values', () => describeValues(context))
    describe('answers', () => describeAnswers(context))
    describe('transactions', () => describeTransactions(context))
    describe('errors', () => describeErrors(context))
    describe('kv', () => describeKv(context))
    describe('once', () => describeOnce(context))
    describe('acquire', () => describeAcquire(context))
    describe('locks', () => describeLock(context))
    describe('rate limits', () => describeRate(context))
    describe('rows', () => describeRows(context))
    describe('calls that are not awaited', () => describeOpenCalls(context))
    if (harness.adapt) describe('what is no open transaction', () => describeRefusals(context))
  })
}
