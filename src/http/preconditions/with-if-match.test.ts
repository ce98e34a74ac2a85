import express, {
  type Request as ExpressRequest,
  type Response as ExpressResponse,
  type NextFunction,
} from 'express'
import { beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { deferred } from '../../../test/deferred.js'
import { listen } from '../../../test/http/listen.js'
import { toProblem } from '../../errors/to-problem.js'
import { BusinessRuleError, ConflictError, PreconditionFailedError } from '../../errors.js'
import { retryOnConflict } from '../../postgres/retry-on-conflict.js'
import type { Transaction } from '../../postgres/transaction-types.js'
import { idempotency } from '../adapters/express.js'
import { idempotent } from '../adapters/fetch.js'
import type { IdempotencyOptions } from '../idempotency/idempotency-options.js'
import { claimed } from '../idempotency/request-claim.js'
import { etagOf } from './entity-tag.js'
import { ifMatch } from './precondition.js'
import { withIfMatch } from './with-if-match.js'

const fixture = openClaims()
let doc: string

beforeAll(async () => {
  doc = `${fixture.schema.name}.doc`
  await fixture.pool.query(
    `create table ${doc} (id int primary key, version int not null, item text not null)`,
  )
})

beforeEach(async () => {
  await fixture.pool.query(`delete from ${doc}; insert into ${doc} values (1, 7, 'tea')`)
})

const stored = async () => (await fixture.pool.query(`select version, item from ${doc}`)).rows[0]

/** Updates the row if it still has this version, and throws a `ConflictError` otherwise. */
async function update(tx: Transaction, version: number, item: string): Promise<number> {
  const { rows } = await tx.query<{ version: number }>(
    `update ${doc} set item = $2, version = version + 1 where id = 1 and version = $1 returning version`,
    [version, item],
  )
  if (rows[0]) return rows[0].version
  const now = await tx.query<{ version: number }>(`select version from ${doc} where id = 1`)
  throw new ConflictError({ subject: 'doc 1', expected: version, current: now.rows[0]?.version })
}

const seen = (value: string) => ({ 'if-match': value })
const errorOf = (promise: Promise<unknown>) =>
  promise.then(
    () => undefined,
    (error: unknown) => error,
  )

describe('withIfMatch', () => {
  const put = (tag: string, item = 'coffee') =>
    withIfMatch(seen(tag), (version) => fixture.dibs.transaction((tx) => update(tx, version, item)))

  it('writes with the version that the client has seen', async () => {
    expect(await put('"7"')).toBe(8)
    expect(await stored()).toEqual({ version: 8, item: 'coffee' })
  })

  it('is refused when that has moved on, with what is there, after one attempt', async () => {
    let runs = 0
    const writing = withIfMatch(seen('"6"'), (version) =>
      fixture.dibs.transaction(async (tx) => {
        runs++
        return await update(tx, version, 'coffee')
      }),
    )
    const error = await errorOf(writing)
    expect(error).toBeInstanceOf(PreconditionFailedError)
    expect(error).toMatchObject({ current: 7, etag: '"7"', cause: { code: 'DIBS_CONFLICT', expected: 6 } })
    expect(runs).toBe(1)
    expect(await stored()).toEqual({ version: 7, item: 'tea' })
  })

  it('lets one of many with the same version win', async () => {
    const tags = await Promise.allSettled(Array.from({ length: 8 }, (_, n) => put('"7"', `item ${n}`)))
    expect(tags.filter(({ status }) => status === 'fulfilled')).toHaveLength(1)
    const refused = tags.flatMap((tag) => (tag.status === 'rejected' ? [tag.reason] : []))
    for (const error of refused) expect(error).toMatchObject({ status: 412, current: 8 })
    expect((await stored()).version).toBe(8)
  })

  it('runs again after a conflict that is not about the version: at REPEATABLE READ that is 40001 first', async () => {
    const read = deferred()
    const written = deferred()
    const runs: number[] = []
    const writing = withIfMatch(seen('"7"'), (version) =>
      fixture.dibs.transaction(
        async (tx) => {
          runs.push(tx.attempt)
          await tx.query(`select 1 from ${doc}`)
          read.resolve()
          await written.promise
          return await update(tx, version, 'coffee')
        },
        { isolation: 'repeatable read' },
      ),
    )
    const refused = errorOf(writing)
    await read.promise
    await fixture.pool.query(`update ${doc} set version = 8`)
    written.resolve()
    expect(await refused).toMatchObject({ status: 412, current: 8 })
    expect(runs).toEqual([1, 1]) // two transactions, and no attempts within one
  })

  it('lets out what is about something else', async () => {
    const others = [new BusinessRuleError('sold out'), new TypeError('a bug')]
    for (const error of others)
      await expect(withIfMatch(seen('"7"'), () => Promise.reject(error))).rejects.toBe(error)
    const other = () => Promise.reject(new ConflictError({ subject: 'stock', expected: 3, current: 4 }))
    const gaveUp = fixture.dibs.transaction(() => withIfMatch(seen('"7"'), other), { maxAttempts: 1 })
    await expect(gaveUp).rejects.toMatchObject({ code: 'DIBS_CONFLICT', expected: 3 })
  })

  it('runs once where a transaction is open, or something around runs it again', async () => {
    let runs = 0
    const failing = async (): Promise<never> => {
      runs++
      throw new ConflictError({ subject: 'stock' })
    }
    const inside = () => withIfMatch(seen('"7"'), failing)
    await expect(fixture.dibs.transaction(inside, { maxAttempts: 1 })).rejects.toMatchObject({ attempts: 1 })
    expect(runs).toBe(1)
    await expect(retryOnConflict(inside, { maxAttempts: 2 })).rejects.toMatchObject({ attempts: 2 })
    expect(runs).toBe(3)
  })

  it.each([
    ['*', { status: 428, header: 'If-Match' }],
    ['"7", "8"', { status: 400, field: 'If-Match' }],
    ['7', { status: 400, field: 'If-Match' }],
    ['W/"7"', { status: 412 }],
    ['"07"', { status: 412 }],
    ['"7.5"', { status: 412 }],
    ['""', { status: 412 }],
    ['"9007199254740993"', { status: 412 }],
  ])('refuses %s before anything is written', async (tag, expected) => {
    expect(await errorOf(put(tag))).toMatchObject(expected)
    expect((await stored()).version).toBe(7)
  })

  it('asks for the header', async () => {
    const fn = () => Promise.reject(new Error('not to be run'))
    expect(await errorOf(withIfMatch(new Headers(), fn))).toMatchObject({ status: 428 })
  })
})

describe('under the Idempotency-Key', () => {
  const handler = (options: Partial<IdempotencyOptions<Request>> = {}) => {
    let runs = 0
    const handle = idempotent(fixture.dibs, { scope: 'anonymous', ...options }, async (request, { tx }) => {
      runs++
      const version = await withIfMatch(request.headers, (version) => update(tx, version, 'coffee'))
      return Response.json({ version }, { headers: { ETag: etagOf(version) } })
    })
    const put = (headers: Record<string, string>) =>
      handle(
        new Request('http://localhost/docs/1', {
          method: 'PUT',
          body: '{}',
          headers: { 'idempotency-key': 'k', ...headers },
        }),
      )
    return { put, runs: () => runs }
  }
  const isReplay = ({ headers }: Response): boolean => headers.get('idempotency-replayed') === 'true'

  it('a repetition gets the answer of the first, though its version has moved on by that very write', async () => {
    const { put, runs } = handler()
    const answers = [await put(seen('"7"')), await put(seen('"7"'))]
    expect(answers.map(({ status, headers }) => [status, headers.get('etag')])).toEqual([
      [200, '"8"'],
      [200, '"8"'],
    ])
    expect(answers.map(isReplay)).toEqual([false, true])
    expect(runs()).toBe(1)
  })

  it('412 is an answer of the handler: rendered, run once, stored, replayed with its ETag', async () => {
    const { put, runs } = handler()
    const answers = [await put(seen('"6"')), await put(seen('"6"'))]
    for (const answer of answers) {
      expect(answer.status).toBe(412)
      expect(answer.headers.get('etag')).toBe('"7"')
      expect(answer.headers.get('content-type')).toBe('application/problem+json')
      expect(await answer.json()).toMatchObject({ type: 'urn:dibs:problem:precondition-failed', status: 412 })
    }
    expect(answers.map(isReplay)).toEqual([false, true])
    expect(runs()).toBe(1)
  })

  it.each([
    [428, {}],
    [400, { 'if-match': '7' }],
  ])(
    '%i is rendered, and 428 leaves the key free for the same request with the header',
    async (status, headers) => {
      const { put } = handler()
      expect((await put(headers)).status).toBe(status)
      const again = await put(seen('"7"'))
      expect([again.status, isReplay(again)]).toEqual(status === 428 ? [200, false] : [400, true])
    },
  )

  it('looks as the route says', async () => {
    const { put } = handler({ statuses: { preconditionFailed: 409 }, problemTypes: 'https://example.com/' })
    const answer = await put(seen('"6"'))
    expect(answer.status).toBe(409)
    expect(await answer.json()).toMatchObject({ type: 'https://example.com/precondition-failed' })
  })

  it('is explained also where an option of the route asks for it, before the handler', async () => {
    const { put, runs } = handler({ fingerprint: (request) => ifMatch(request.headers) })
    const answer = await put({})
    expect(answer.status).toBe(428)
    expect(await answer.json()).toMatchObject({ operationState: 'unknown', newKeyIsSafe: false })
    expect((await put(seen('7'))).status).toBe(400)
    expect(runs()).toBe(0)
  })

  it('with If-Match in the fingerprint another version is another request', async () => {
    const { put } = handler({ fingerprintHeaders: ['if-match'] })
    expect((await put(seen('"6"'))).status).toBe(412)
    expect((await put(seen('"7"'))).status).toBe(422)
  })

  it('is rendered on Express by the handler of errors there, and stored by its status', async () => {
    const app = express()
    const gate = idempotency(fixture.dibs, { scope: 'anonymous' })
    app.put('/docs/1', gate, async (req, res) => {
      const { tx } = claimed(req)
      await tx.query(`insert into ${fixture.log} (name) values ('undone')`)
      const version = await withIfMatch(req.headers, (version) => update(tx, version, 'coffee'))
      res.set('ETag', etagOf(version)).json({ version })
    })
    app.use((error: unknown, _: ExpressRequest, res: ExpressResponse, next: NextFunction) => {
      if (res.headersSent) return next(error)
      const { status, headers, body } = toProblem(error)
      res.status(status).set(headers).json(body)
    })
    const port = await listen(app)
    const put = async (key: string, headers: Record<string, string>) => {
      const answer = await fetch(`http://127.0.0.1:${port}/docs/1`, {
        method: 'PUT',
        headers: { 'idempotency-key': key, ...headers },
      })
      return [answer.status, answer.headers.get('etag'), isReplay(answer)]
    }
    expect(await put('a', seen('"6"'))).toEqual([412, '"7"', false])
    expect(await put('a', seen('"6"'))).toEqual([412, '"7"', true])
    expect((await put('b', {}))[0]).toBe(428)
    expect(await fixture.logged()).toEqual([])
    expect(await put('b', seen('"7"'))).toEqual([200, '"8"', false])
    expect(await put('b', seen('"7"'))).toEqual([200, '"8"', true])
  })
})
