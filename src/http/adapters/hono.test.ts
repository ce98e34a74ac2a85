import { Hono } from 'hono'
import { describe, expect, it } from 'vitest'
import { openClaims } from '../../../test/claims/open-claims.js'
import { onEvent } from '../../postgres/events.js'
import { claimed, idempotency } from './hono.js'

const fixture = openClaims()
const post = (app: Hono, body: string | FormData, headers: Record<string, string> = {}) =>
  app.request('/', { method: 'POST', body, headers: { 'idempotency-key': 'k', ...headers } })

describe('Hono', () => {
  it('leaves what a handler sets over what was set before', async () => {
    const app = new Hono()
    app.use(async (c, next) => {
      c.header('cache-control', 'no-store')
      c.header('x-outer', 'there')
      await next()
    })
    app.post('/', idempotency(fixture.dibs, { scope: 'anonymous' }), (c) =>
      c.json({ fine: true }, 201, { 'cache-control': 'public' }),
    )
    for (const _ of [1, 2]) {
      const answer = await post(app, '{}')
      expect([answer.status, answer.headers.get('cache-control'), answer.headers.get('x-outer')]).toEqual([
        201,
        'public',
        'there',
      ])
    }
  })

  it('leaves the request itself to be read', async () => {
    const app = new Hono()
    app.post('/', idempotency(fixture.dibs, { scope: 'anonymous' }), async (c) =>
      c.text(`${await c.req.raw.clone().text()} ${await c.req.text()} ${claimed(c).key}`),
    )
    expect(await (await post(app, 'tea')).text()).toBe('tea tea k')
  })

  it.each(['json', 'text', 'formData', 'parseBody'] as const)(
    'compares what was read before by %s',
    async (how) => {
      const app = new Hono()
      app.use(async (c, next) => {
        await (c.req[how] as () => Promise<unknown>)()
        await next()
      })
      app.post('/', idempotency(fixture.dibs, { scope: 'anonymous' }), (c) => c.text('done'))
      const body = (value: string): string | FormData => {
        if (how === 'json' || how === 'text') return JSON.stringify({ value })
        const form = new FormData()
        form.set('value', value)
        return form
      }
      expect((await post(app, body('a'))).status).toBe(200)
      expect((await post(app, body('a'))).headers.get('idempotency-replayed')).toBe('true')
      expect((await post(app, body('b'))).status).toBe(422)
    },
  )

  it('says so if the request was read behind its back', async () => {
    const app = new Hono()
    app.use(async (c, next) => {
      await c.req.raw.text()
      await next()
    })
    app.post('/', idempotency(fixture.dibs, { scope: 'anonymous' }), (c) => c.text('done'))
    app.onError((error, c) => c.text(error.message, 500))
    expect(await (await post(app, 'tea')).text()).toContain(
      'was read through `c.req.raw`: read it with `c.req`',
    )
  })

  it('keeps all cookies of others in front of a problem', async () => {
    const app = new Hono()
    app.use(async (c, next) => {
      c.header('set-cookie', 'a=1', { append: true })
      c.header('set-cookie', 'b=2', { append: true })
      await next()
    })
    app.post('/', idempotency(fixture.dibs, { scope: 'anonymous' }), async (c) => {
      await claimed(c)
        .tx.query('select 1 / 0')
        .catch(() => {})
      return c.text('as if')
    })
    const answer = await post(app, 'tea')
    expect([answer.status, answer.headers.getSetCookie()]).toEqual([500, ['a=1', 'b=2']])
  })

  const streamOf = (...chunks: unknown[]) =>
    new ReadableStream({
      start(controller) {
        for (const chunk of chunks) controller.enqueue(chunk)
        controller.close()
      },
    })

  it.each<[string, unknown[]]>([
    ['one string', ['téa']],
    ['several strings', ['t', 'é', 'a']],
    ['strings and bytes', ['t', new TextEncoder().encode('é'), 'a']],
  ])('stores a stream of %s as UTF-8', async (_, chunks) => {
    const app = new Hono()
    app.post('/', idempotency(fixture.dibs, { scope: 'anonymous' }), (c) => c.body(streamOf(...chunks)))
    for (const isReplay of [false, true]) {
      const answer = await post(app, '{}')
      expect(answer.headers.has('idempotency-replayed')).toBe(isReplay)
      expect(await answer.text()).toBe('téa')
    }
  })

  it('sends a long response again that is rebuilt as a stream of strings', async () => {
    const app = new Hono()
    const large = { reference: () => 1, rebuild: () => new Response(streamOf('t', 'é', 'a')) }
    const options = { scope: 'anonymous', maxResponseBytes: 0, large } as const
    app.post('/', idempotency(fixture.dibs, options), (c) => c.text('tea'))
    for (const _ of [1, 2]) expect(await (await post(app, '{}')).text()).toBe('téa')
  })

  it.each<[string, unknown]>([
    ['a number', 1],
    ['null', null],
    ['an object', {}],
    ['an ArrayBuffer', new ArrayBuffer(1)],
    ['a Uint16Array', new Uint16Array(1)],
  ])('refuses a stream with %s as a chunk, and stores nothing', async (_, chunk) => {
    let runs = 0
    const app = new Hono()
    app.post('/', idempotency(fixture.dibs, { scope: 'anonymous' }), (c) => {
      runs++
      return c.body(streamOf('tea', chunk))
    })
    const said: string[] = []
    const stop = onEvent('dibs:http.failed', ({ error }) => void said.push((error as Error).message))
    for (const _run of [1, 2]) {
      const answer = await post(app, '{}')
      expect([answer.status, await answer.json()]).toMatchObject([
        500,
        { type: 'urn:dibs:problem:response-not-kept', operationState: 'not done' },
      ])
    }
    stop()
    expect(runs).toBe(2)
    expect(said[0]).toMatch(
      /^The response is a stream with .+ as a chunk\. Enqueue strings or Uint8Arrays\.$/,
    )
  })
})
