import { describe, expect, it } from 'vitest'
import { startAnswerCutter } from '../../../test/answer-cutter.js'
import { openClaims } from '../../../test/claims/open-claims.js'
import { url } from '../../../test/database.js'
import type { Dibs } from '../../dibs.js'
import { ConnectionLostError, PermanentError } from '../../errors.js'
import type { Transaction } from '../../postgres/transaction-types.js'

const fixture = openClaims()
/** More messages than all answers of a call have. */
const MOST = 60

interface CallOutcome {
  readonly value: unknown
  readonly runs: number
  readonly after: number
}

/** Makes one call for each message of the server's answers from there on, and cuts the connection behind that message. */
async function sweep(
  where: 'the opening' | 'the end',
  isWarm: boolean,
  how: 'silent' | 'terminated',
  end: (tx: Transaction) => Promise<unknown>,
  judge: (outcome: CallOutcome, key: string) => Promise<void>,
): Promise<void> {
  await using cutter = await startAnswerCutter(url, how)
  let cuts = 0
  for (; cuts < MOST; cuts++) {
    const key = `${where}-${cuts}`
    await fixture.beside(
      async (dibs, pool) => {
        if (isWarm) await dibs.once({ scope: 'warm', key }, async () => 1)
        else await pool.query('select 1')
        if (where === 'the opening') cutter.cutAfter(cuts)
        await judge(await callOnce(dibs, key, end, () => where === 'the end' && cutter.cutAfter(cuts)), key)
      },
      { connectionString: cutter.url, max: 1 },
    )
    if (!cutter.hasCut) break
  }
  expect(cuts).toBeGreaterThan(3)
  expect(cuts).toBeLessThan(MOST)
}

async function callOnce(
  dibs: Dibs,
  key: string,
  end: (tx: Transaction) => Promise<unknown>,
  beforeEnd: () => unknown,
): Promise<CallOutcome> {
  let runs = 0
  let after = 0
  const call = dibs.once({ scope: 's', key }, async (tx) => {
    await tx.query(`insert into ${fixture.log} (name) values ($1)`, [key])
    tx.afterCommit(() => void after++)
    if (++runs === 1) beforeEnd()
    return await end(tx)
  })
  const value = await call.catch((error) => error)
  return { value, runs, after }
}

describe.each([
  ['a new connection', false, 'silent'],
  ['one that was used before', true, 'silent'],
  ['one that was used before, by an administrator', true, 'terminated'],
] as const)('the end of a connection in the middle of an answer, on %s', (_, isWarm, how) => {
  it('from the opening on: nothing has happened, or all of it', async () => {
    await sweep(
      'the opening',
      isWarm,
      how,
      async () => 'done',
      async ({ value, runs, after }, key) => {
        const kept = (await fixture.logged()).filter((name) => name === key)
        if (value === 'done') expect([runs, after, kept]).toEqual([1, 1, [key]])
        else {
          expect(value).toBeInstanceOf(ConnectionLostError)
          expect([runs, after, kept]).toEqual([0, 0, []])
        }
      },
    )
  })

  it('to outcome and COMMIT: it is done once, and the caller has its answer', async () => {
    await sweep(
      'the end',
      isWarm,
      how,
      async () => 'done',
      async ({ value, after }, key) => {
        expect([value, after]).toEqual(['done', 1])
        expect((await fixture.logged()).filter((name) => name === key)).toEqual([key])
      },
    )
  })

  it('to an error that is stored: it is that error', async () => {
    const fail = () => Promise.reject(new PermanentError('declined'))
    await sweep('the end', isWarm, how, fail, async ({ value, after }, key) => {
      expect(value).toMatchObject({ message: 'declined' })
      expect(after).toBe(0)
      expect(await fixture.logged()).toEqual([])
      expect(await fixture.dibs.claims.get({ scope: 's', key })).toMatchObject({ status: 'failed' })
    })
  })
})
