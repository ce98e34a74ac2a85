import express from 'express'
import { describe, expect, it } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { directUrl } from '../../../test/database.js'
import { ask } from '../../../test/http/ask.js'
import { listen } from '../../../test/http/listen.js'
import type { Dibs } from '../../dibs.js'
import { PgProxy } from '../../testing/proxy/pg-proxy.js'
import { claimed, type IdempotencyOptions, idempotency } from '../adapters/express.js'

const fixture = openClaims()

/** The message that ends a transaction. */
const LAST = '/\\bcommit$/'

/** An application on the other side of a network that fails; how it is asked. */
async function beyond(
  options: Partial<IdempotencyOptions<express.Request>>,
  handler: express.RequestHandler,
  run: (proxy: PgProxy, post: () => ReturnType<typeof ask>) => Promise<void>,
): Promise<void> {
  await using proxy = await PgProxy.start({ url: directUrl })
  const serve = async (dibs: Dibs) => {
    const app = express()
    app.post('/', idempotency(dibs, { scope: 'anonymous', ...options }), handler)
    const port = await listen(app)
    await run(proxy, () => ask(port, '/', { headers: { 'idempotency-key': 'k' } }))
  }
  await fixture.beside(serve, { connectionString: proxy.url })
}

describe('when the network is lost', () => {
  let runs = 0
  const writes: express.RequestHandler = async (request, response) => {
    runs++
    await claimed(request).tx.query(`insert into ${fixture.log} (name) values ('a')`)
    response.status(201).json({ fine: true })
  }

  it('after COMMIT: the client has its answer, which is true', async () => {
    runs = 0
    await beyond({}, writes, async (proxy, post) => {
      const cut = proxy.inject({ kind: 'cut', when: 'after', statement: LAST })
      expect(await post()).toMatchObject({ status: 201, json: { fine: true } })
      expect([cut.strikes, runs]).toEqual([1, 1])
      expect((await post()).headers['idempotency-replayed']).toBe('true')
    })
    expect(await fixture.logged()).toEqual(['a'])
  })

  it('before COMMIT: nothing was done, and the client is told so', async () => {
    runs = 0
    await beyond({}, writes, async (proxy, post) => {
      proxy.inject({ kind: 'cut', when: 'before', statement: LAST })
      const answer = await post()
      expect(answer).toMatchObject({ status: 503, json: { operationState: 'not done', newKeyIsSafe: true } })
      expect(runs).toBe(1)
      expect(await fixture.logged()).toEqual([])
      expect((await post()).status).toBe(201)
    })
    expect(await fixture.logged()).toEqual(['a'])
  })

  it.each([
    ['a response', {}],
    ['one that cannot be kept', { maxResponseBytes: 1 }],
  ])(
    'and the outcome of leased work cannot be stored (%s): it is not known, and not repeated',
    async (_, more) => {
      runs = 0
      let proxyOf: PgProxy | undefined
      const pays: express.RequestHandler = (_request, response) => {
        runs++
        proxyOf?.inject({ kind: 'cut', when: 'before', statement: 'claim_store_outcome', times: 'always' })
        response.json({ paid: true })
      }
      await beyond({ mode: 'leased', ...more }, pays, async (proxy, post) => {
        proxyOf = proxy
        expect(await post()).toMatchObject({
          status: 503,
          json: { type: 'urn:dibs:problem:outcome-unknown', operationState: 'unknown', newKeyIsSafe: false },
        })
        expect((await post()).status).toBe(409)
      })
      expect(runs).toBe(1)
    },
  )
})
