import { randomUUID } from 'node:crypto'
import { Agent } from 'node:http'
import { deflateSync, gzipSync } from 'node:zlib'
import type pg from 'pg'
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished } from 'vitest'
import { Dibs } from '../../src/dibs.js'
import { directUrl, dropSchema, freshName, until } from '../database.js'
import { type Answer, ask, type Question } from './ask.js'
import { type RunningApp, startApp } from './start-app.js'

/** The features that some frameworks lack. */
export interface Abilities {
  /** A stream can be told by how it is sent, and not only by what it says of itself. */
  readonly pipes?: boolean
  /** There is something that validates before the handler. */
  readonly validates?: boolean
  /** Reads the body of a request itself, within a limit of ours. */
  readonly readsBody?: boolean
}

/** One suite for all frameworks: each is a real application in a process of its own, asked over real HTTP. */
export function describeHttp(app: string, abilities: Abilities = {}): void {
  const { pipes = true, validates = true, readsBody = false } = abilities
  const schema = freshName('http')
  const tables = freshName('http_tables')
  const env = { DATABASE_URL: directUrl, DIBS_SCHEMA: schema, DIBS_TABLES: tables }
  let dibs: Dibs
  let pool: pg.Pool
  let running: RunningApp
  /** Another process of the same application: there is always one more, and it is ready when the first is gone. */
  let spare: Promise<RunningApp>
  const failOver = async (): Promise<void> => {
    running = await spare
    spare = startApp(app, env)
    spare.catch(() => {}) // told to whoever waits for it
  }

  beforeAll(async () => {
    dibs = await Dibs.open({ url: directUrl, schema, listen: false, maintain: false })
    pool = dibs.pool
    await pool.query(`
      create schema ${tables};
      create table ${tables}.effects (id serial, what text not null);
      create table ${tables}.arrived (name text not null);
      create table ${tables}.gates (name text not null);
      create sequence ${tables}.runs`)
    spare = startApp(app, env)
    await failOver()
    await spare
  })
  beforeEach(() => pool.query(`truncate ${tables}.effects, ${tables}.arrived, ${tables}.gates`))
  afterAll(async () => {
    await running?.kill()
    await (await spare)?.kill()
    await dibs?.close()
    await dropSchema(schema)
    await dropSchema(tables)
  })

  const effects = async (): Promise<string[]> => {
    const { rows } = await pool.query(`select what from ${tables}.effects order by id`)
    return rows.map(({ what }) => what)
  }
  const openGate = (name: string) => pool.query(`insert into ${tables}.gates (name) values ($1)`, [name])
  const arrived = (name: string, times = 1) =>
    until(async () => {
      const { rowCount } = await pool.query(`select from ${tables}.arrived where name = $1`, [name])
      return (rowCount ?? 0) >= times
    }, 'the handler to be reached')
  const send = (path: string, question: Question & { key?: string } = {}): Promise<Answer> => {
    const { key = randomUUID(), headers = {} } = question
    return ask(running.port, path, { ...question, headers: { 'idempotency-key': key, ...headers } })
  }
  const item = { body: { item: 'tea' } }

  /** Repeats a request, as clients do, until it is not in progress. */
  const insist = async (path: string, question: Question & { key: string }): Promise<Answer> => {
    for (let n = 0; n < 200; n++) {
      const answer = await send(path, question)
      if (answer.status !== 409 && answer.status !== 503) return answer
      expect(Number(answer.headers['retry-after'])).toBeGreaterThanOrEqual(1)
      await new Promise((resolve) => setTimeout(resolve, 25))
    }
    throw new Error('It is in progress for ever.')
  }

  const expectProblem = (answer: Answer, status: number, type: string) => {
    expect({ status: answer.status, body: answer.body.toString() }).toMatchObject({ status })
    expect(answer.headers['content-type']).toContain('application/problem+json')
    expect(answer.json).toMatchObject({
      type: `urn:dibs:problem:${type}`,
      status,
      title: expect.any(String),
      detail: expect.any(String),
    })
  }

  describe('a repetition', () => {
    it('gets the response of the first: status, bytes, headers; never cookies', async () => {
      const key = randomUUID()
      const first = await send('/orders', { ...item, key })
      const again = await send('/orders', { ...item, key })
      expect(first).toMatchObject({ status: 201, headers: { 'set-cookie': ['a=1'], 'x-outer': 'there' } })
      expect(first.headers['idempotency-replayed']).toBeUndefined()
      expect(again.status).toBe(201)
      expect(again.body.equals(first.body)).toBe(true)
      expect(again.headers).toMatchObject({
        location: first.headers.location,
        'content-type': first.headers['content-type'],
        'content-length': String(first.body.length),
        'idempotency-replayed': 'true',
        'x-outer': 'there',
      })
      expect(again.headers['set-cookie']).toBeUndefined()
      expect(again.headers['x-order']).toBeUndefined()
      expect(await effects()).toEqual(['order tea'])
    })

    it.each(['PUT', 'PATCH'])('of %s', async (method) => {
      const key = randomUUID()
      const first = await send('/orders', { ...item, key, method })
      const again = await send('/orders', { ...item, key, method })
      expect(again.body.equals(first.body)).toBe(true)
      expect(again.headers['idempotency-replayed']).toBe('true')
      expect(await effects()).toHaveLength(1)
    })

    it.each(['/bytes', '/nul', '/text', '/empty'])('has the very bytes: %s', async (path) => {
      const key = randomUUID()
      const first = await send(path, { key })
      const again = await send(path, { key })
      expect(again.body.equals(first.body)).toBe(true)
      expect(again.status).toBe(first.status)
      expect(again.headers['content-type']).toBe(first.headers['content-type'])
      expect(again.headers['idempotency-replayed']).toBe('true')
      expect(await effects()).toHaveLength(1)
    })

    it('twenty at a time: one is carried out, all end with its bytes', async () => {
      const key = randomUUID()
      const answers = await Promise.all(Array.from({ length: 20 }, () => insist('/orders', { ...item, key })))
      expect(await effects()).toEqual(['order tea'])
      for (const { status, body } of answers) {
        expect(status).toBe(201)
        expect(body.equals((answers[0] as Answer).body)).toBe(true)
      }
      const replayed = answers.filter(({ headers }) => headers['idempotency-replayed'])
      expect(replayed).toHaveLength(19)
    })

    it('twenty at a time that wait: nobody is turned away', async () => {
      const key = randomUUID()
      const gate = { key, headers: { 'x-gate': key } }
      const asked = Array.from({ length: 20 }, () => send('/waits', gate))
      await arrived(key)
      await openGate(key)
      const answers = await Promise.all(asked)
      expect(await effects()).toEqual(['slow'])
      expect(new Set(answers.map(({ status, body }) => `${status} ${body}`)).size).toBe(1)
      expect(answers[0]?.status).toBe(200)
    })

    it('twenty at a time, leased: one effect', async () => {
      const key = randomUUID()
      const body = { amount: 5 }
      const answers = await Promise.all(Array.from({ length: 20 }, () => insist('/paid', { key, body })))
      expect(await effects()).toEqual(['paid 5'])
      expect(new Set(answers.map(({ status, body }) => `${status} ${body}`)).size).toBe(1)
      expect(answers[0]?.json).toMatchObject({ attempt: 1 })
    })

    it('after the process was killed, by another', async () => {
      const key = randomUUID()
      const first = await send('/orders', { ...item, key })
      await running.kill()
      await failOver()
      const again = await send('/orders', { ...item, key })
      expect(again.body.equals(first.body)).toBe(true)
      expect(again.headers['idempotency-replayed']).toBe('true')
    })

    it('over one connection that is kept', async () => {
      const agent = new Agent({ keepAlive: true, maxSockets: 1 })
      onTestFinished(() => agent.destroy())
      const key = randomUUID()
      const paths: [string, Question & { key?: string }][] = [
        ['/orders', { ...item, key }],
        ['/orders', { ...item, key }],
        ['/orders', { body: { item: 'other' }, key }],
        ['/empty', {}],
        ['/throws', {}],
        ['/large', { headers: { 'x-bytes': '2000' } }],
        ['/orders', { ...item, key }],
      ]
      const ports = new Set<number | undefined>()
      const statuses: number[] = []
      for (const [path, question] of paths) {
        const onSent: Question['onSent'] = (request) =>
          request.on('response', () => ports.add(request.socket?.localPort))
        statuses.push((await send(path, { ...question, agent, onSent })).status)
      }
      expect(statuses).toEqual([201, 201, 422, 204, 500, 500, 201])
      expect(ports.size).toBe(1)
    })
  })

  describe('another request', () => {
    it('with the same key is 422, and nothing runs', async () => {
      const key = randomUUID()
      await send('/orders', { ...item, key })
      const other = await send('/orders', { body: { item: 'coffee' }, key })
      expectProblem(other, 422, 'key-reused')
      expect(other.json).toMatchObject({ operationState: 'not started', newKeyIsSafe: true })
      expect(await effects()).toEqual(['order tea'])
    })

    it.each(['/gate', '/paid-at-gate'])(
      'while the first is in flight (%s): 422, and the same is 409',
      async (path) => {
        const key = randomUUID()
        const headers = { 'x-gate': key }
        const first = send(path, { ...item, key, headers })
        await arrived(key)
        const same = await send(path, { ...item, key, headers })
        expectProblem(same, 409, 'in-progress')
        expect(same.headers['retry-after']).toBe('1')
        expect(same.json).toMatchObject({ operationState: 'running', newKeyIsSafe: false })
        expectProblem(await send(path, { body: { item: 'coffee' }, key, headers }), 422, 'key-reused')
        await openGate(key)
        expect((await first).status).toBe(200)
        expect(await effects()).toHaveLength(1)
      },
    )

    it('is one with another query, or a header that was chosen', async () => {
      const key = randomUUID()
      expect((await send('/orders?a=1', { ...item, key })).status).toBe(201)
      expect((await send('/orders?a=2', { ...item, key })).status).toBe(422)
      const version = (n: string) => send('/headers', { ...item, key, headers: { 'x-version': n } })
      const first = await version('1')
      expect((await version('2')).status).toBe(422)
      const again = await version('1')
      expect(again.headers['x-order']).toBe(first.headers['x-order']) // asked for
    })

    it('is not one whose JSON is written in another way', async () => {
      const key = randomUUID()
      const json = { 'content-type': 'application/json' }
      const one = Buffer.from('{"item":"tea","n":{"a":1.0,"b":[1,2]}}')
      const two = Buffer.from('{ "n": {"b": [1, 2], "a": 1}, "item": "te\\u0061" }')
      expect((await send('/orders', { key, headers: json, body: one })).status).toBe(201)
      const again = await send('/orders', { key, headers: json, body: two, isChunked: true })
      expect(again).toMatchObject({ status: 201, headers: { 'idempotency-replayed': 'true' } })
      const order = Buffer.from('{"item":"tea","n":{"a":1,"b":[2,1]}}')
      expect((await send('/orders', { key, headers: json, body: order })).status).toBe(422)
    })

    it('is not one whose parts have another boundary', async () => {
      const form = (boundary: string, file: string) =>
        Buffer.from(
          `--${boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--${boundary}\r\nContent-Disposition: form-data; name="f"; filename="f.txt"\r\nContent-Type: text/plain\r\n\r\n${file}\r\n--${boundary}--\r\n`,
        )
      const key = randomUUID()
      const upload = (boundary: string, file: string) =>
        send('/bytes', {
          key,
          headers: { 'content-type': `multipart/form-data; boundary=${boundary}` },
          body: form(boundary, file),
        })
      expect((await upload('one', 'x')).status).toBe(200)
      expect((await upload('two', 'x')).headers['idempotency-replayed']).toBe('true')
      expect((await upload('three', 'y')).status).toBe(422)
    })

    it.each([
      ['gzip', gzipSync],
      ['deflate', deflateSync],
    ])('is not one that is packed: %s', async (encoding, pack) => {
      const key = randomUUID()
      const headers = { 'content-type': 'application/json', 'content-encoding': encoding }
      const packed = { key, headers, body: pack(JSON.stringify(item.body)) }
      expect((await send('/orders', packed)).status).toBe(201)
      const plain = await send('/orders', { ...item, key })
      expect(plain.headers['idempotency-replayed']).toBe('true')
      expect((await send('/orders', { ...packed, body: pack('{"item":"coffee"}') })).status).toBe(422)
    })
  })

  describe('whose key', () => {
    it('two tenants, and two users, do not share keys', async () => {
      const key = randomUUID()
      const by = (tenant: string, user: string) =>
        send('/orders', { ...item, key, headers: { 'x-tenant': tenant, 'x-user': user } })
      const answers = [await by('a', 'u'), await by('b', 'u'), await by('a', 'v'), await by('a:u', 'v')]
      expect(answers.map(({ status }) => status)).toEqual([201, 201, 201, 201])
      expect(new Set(answers.map(({ json }) => json.id)).size).toBe(4)
      expect((await by('b', 'u')).json).toEqual(answers[1]?.json)
    })

    it('methods and paths do not share keys; anonymous users do', async () => {
      const key = randomUUID()
      expect((await send('/orders', { ...item, key })).headers['idempotency-replayed']).toBeUndefined()
      const put = await send('/orders', { ...item, key, method: 'PUT' })
      expect(put.status).toBe(201)
      expect(put.headers['idempotency-replayed']).toBeUndefined()
      await send('/anonymous', { ...item, key, headers: { 'x-user': 'a' } })
      const other = await send('/anonymous', { ...item, key, headers: { 'x-user': 'b' } })
      expect(other.headers['idempotency-replayed']).toBe('true')
    })

    it('a user without a name is nobody, and not everybody', async () => {
      const answer = await send('/orders', { ...item, headers: { 'x-user': '' } })
      expect(answer.status).toBe(500)
      expect(await effects()).toEqual([])
    })

    it('a very long path is told apart by its hash', async () => {
      const key = randomUUID()
      const long = `/status/${'0'.repeat(700)}`
      const answers = [await send(`${long}200`, { key }), await send(`${long}201`, { key })]
      expect(answers.map(({ status }) => status)).toEqual([200, 201])
      const again = await send(`${long}201`, { key })
      expect(again).toMatchObject({ status: 201, headers: { 'idempotency-replayed': 'true' } })
      const escaped = await send(`/status/${'%30'.repeat(150)}200`, { key })
      expect(escaped.status).toBe(200)
    })

    it('is found elsewhere if the application says so', async () => {
      const event = { ...item, headers: { 'x-event': 'evt, "1"', 'idempotency-key': '' } }
      const first = await send('/webhook', event)
      const again = await send('/webhook', event)
      expect(first.status).toBe(201)
      expect(again.json).toEqual(first.json)
      expectProblem(await send('/webhook', item), 400, 'key-missing')
    })
  })

  describe('the key', () => {
    const withKey = (key: string | string[]) =>
      ask(running.port, '/orders', { ...item, headers: { 'idempotency-key': key } })

    it('is required', async () => {
      const answer = await ask(running.port, '/orders', item)
      expectProblem(answer, 400, 'key-missing')
      expect(answer.json).toMatchObject({ operationState: 'not started', newKeyIsSafe: true })
      expect(await effects()).toEqual([])
    })

    it('is a text of RFC 8941, or a bare word, which are the same', async () => {
      const key = randomUUID()
      const first = await withKey(key)
      for (const written of [`"${key}"`, ` "${key}" `, `"${key}"; a=1; b="x, y"`])
        expect((await withKey(written)).body.equals(first.body)).toBe(true)
      expect((await withKey(`"a \\"quoted\\" \\\\ word ${key}"`)).status).toBe(201)
      expect((await withKey(`a+b/c=${key}:~`)).status).toBe(201)
      expect((await withKey('x'.repeat(255 - key.length) + key)).status).toBe(201)
    })

    it.each([
      ['empty', ''],
      ['an empty text', '""'],
      ['too long', 'x'.repeat(256)],
      ['two values', ['a', 'b']],
      ['two texts', '"a", "b"'],
      ['a text that does not end', '"a'],
      ['something behind it', '"a" b'],
      ['not ASCII', 'schl\u00fcssel'],
      ['a bare word with a blank', 'a b'],
    ])('is refused: %s', async (_, key) => {
      expectProblem(await withKey(key), 400, 'key-invalid')
      expect(await effects()).toEqual([])
    })

    it('is the same under all paths that `normalizePath` makes one', async () => {
      const key = randomUUID()
      const first = await send('/paths/Tea', { ...item, key })
      expect(first.status).toBe(201)
      const again = await send('/paths/tEA', { ...item, key })
      expect([again.status, again.headers['idempotency-replayed']]).toEqual([201, 'true'])
      expect(again.body.equals(first.body)).toBe(true)
      expect((await send('/paths/coffee', { ...item, key })).headers['idempotency-replayed']).toBeUndefined()
      expectProblem(await send('/paths/tea?x=1', { ...item, key }), 422, 'key-reused')
      expect(await effects()).toHaveLength(2)
    })

    it('must have the form that a route asks for', async () => {
      for (let n = 0; n < 3; n++) expect((await send('/uuid', item)).status).toBe(201)
      expectProblem(await send('/uuid', { ...item, key: 'not-one' }), 400, 'key-invalid')
    })

    it('is not needed where it is optional; then each request is carried out, in its transaction', async () => {
      const plain = (body: object) => ask(running.port, '/optional', { body })
      expect((await plain({ n: 1 })).json).toEqual({ key: null })
      expect((await plain({ n: 1 })).headers['idempotency-replayed']).toBeUndefined()
      expect((await plain({ status: 400 })).status).toBe(400) // undone
      const key = randomUUID()
      await send('/optional', { key })
      expect((await send('/optional', { key })).headers['idempotency-replayed']).toBe('true')
      expect(await effects()).toEqual(['optional undefined', 'optional undefined', `optional ${key}`])
      expect((await ask(running.port, '/optional-leased', {})).json).toEqual({ key: null })
    })
  })

  describe('what is none of ours', () => {
    it('GET and HEAD are not touched, with a key or without', async () => {
      for (const method of ['GET', 'HEAD'])
        for (const headers of [{}, { 'idempotency-key': 'bad, key' }]) {
          const answer = await ask(running.port, '/orders', { method, headers })
          expect(answer.status).toBe(200)
          expect(answer.headers['idempotency-replayed']).toBeUndefined()
          expect(answer.body.toString()).toBe(method === 'GET' ? 'untouched' : '')
        }
      const { rows } = await pool.query(`select from ${schema}.claim where key like '%bad, key%'`)
      expect(rows).toEqual([])
    })

    it('DELETE is not, unless a route asks for it', async () => {
      expect((await send('/orders', { method: 'DELETE' })).body.toString()).toBe('untouched')
      const key = randomUUID()
      const first = await send('/deletable', { method: 'DELETE', key })
      const again = await send('/deletable', { method: 'DELETE', key })
      expect(again.body.equals(first.body)).toBe(true)
      expect(await effects()).toHaveLength(1)
    })
  })

  describe('when the process dies', () => {
    it('joined: nothing was done, and the next one does it', async () => {
      const key = randomUUID()
      await expect(send('/dies', { key, headers: { 'x-die': '1' } })).rejects.toThrow()
      await running.ended
      await failOver()
      const next = await insist('/dies', { key })
      expect(next.body.toString()).toBe('lives')
      expect(next.headers['idempotency-replayed']).toBeUndefined()
      expect(await effects()).toEqual(['died'])
    })

    it('leased: the next one takes over when the lease has run out', async () => {
      const key = randomUUID()
      await spare // the lease runs from now on
      await expect(send('/dies-leased', { key, headers: { 'x-die': '1' } })).rejects.toThrow()
      await running.ended
      await failOver()
      expectProblem(await send('/dies-leased', { key }), 409, 'in-progress')
      const next = await insist('/dies-leased', { key })
      expect(next.body.toString()).toBe('lives')
      expect(await effects()).toEqual(['died', 'died'])
    })
  })

  describe('when the client goes away in the middle', () => {
    it.each(['/gate', '/paid-at-gate'])(
      'it is carried out, and the repetition has its response: %s',
      async (path) => {
        const key = randomUUID()
        const headers = { 'x-gate': key }
        let cut = () => {}
        const gone = send(path, {
          key,
          headers,
          onSent: (request) => {
            cut = () => request.destroy()
          },
        })
        gone.catch(() => {})
        await arrived(key)
        cut()
        await expect(gone).rejects.toThrow()
        await openGate(key)
        const next = await insist(path, { key, headers })
        expect(next.status).toBe(200)
        expect(next.headers['idempotency-replayed']).toBe('true')
        expect(await effects()).toHaveLength(1)
      },
    )
  })

  describe('what is stored', () => {
    const twice = async (path: string, question: Question = {}) => {
      const key = randomUUID()
      return [await send(path, { ...question, key }), await send(path, { ...question, key })] as const
    }
    const isReplay = ({ headers }: Answer): boolean => headers['idempotency-replayed'] === 'true'

    it.each([
      ['/status', [200, 303, 400, 404, 409, 412, 422], [401, 403, 408, 425, 428, 429, 500, 503]],
      ['/v1', [200, 404, 500, 503], [401, 429]],
      ['/v2', [200, 303], [400, 404, 422, 500]],
    ])('%s: by status', async (path, stored, run) => {
      for (const status of stored) {
        const [first, again] = await twice(`${path}/${status}`)
        expect(first.status).toBe(status)
        expect({ status, isReplay: isReplay(again) }).toEqual({ status, isReplay: true })
        expect(again.body.equals(first.body)).toBe(true)
      }
      for (const status of run) {
        const [first, again] = await twice(`${path}/${status}`)
        expect({ status: again.status, isReplay: isReplay(again) }).toEqual({ status, isReplay: false })
        expect(again.json.run).not.toBe(first.json.run)
      }
      // The writes of a refused request are rolled back, whether its answer is stored or not.
      const kept = stored.filter((status) => status < 400).map((status) => `status ${status}`)
      expect(await effects()).toEqual(kept)
    })

    it('an error that is thrown is handled as ever, undone, and not stored', async () => {
      const [first, again] = await twice('/throws')
      expect(first.status).toBe(500)
      expect(first.body.toString()).not.toContain('urn:dibs')
      expect(isReplay(again)).toBe(false)
      expect(await effects()).toEqual([])
    })

    it('a response of success over a transaction that has failed is not sent', async () => {
      const answer = await send('/swallows')
      expectProblem(answer, 500, 'failed')
      expect(answer.json).toMatchObject({ operationState: 'not done' })
      expect(answer.headers['x-outer']).toBe('there')
      expect(await effects()).toEqual([])
    })

    it('too large: refused, and nothing was done', async () => {
      const key = randomUUID()
      const bytes = (n: number) => send('/large', { key, headers: { 'x-bytes': String(n) } })
      const refused = await bytes(1_001)
      expectProblem(refused, 500, 'response-not-kept')
      expect(refused.json).toMatchObject({ operationState: 'not done', newKeyIsSafe: true })
      expect(await effects()).toEqual([])
      expect((await bytes(1_000)).status).toBe(200)
      expect((await bytes(1_000)).body.length).toBe(1_000)
    })

    it('too large, leased: the work is done, and never repeated', async () => {
      const [first, again] = await twice('/paid-large')
      for (const answer of [first, again]) expectProblem(answer, 500, 'response-not-kept')
      expect(again.json).toMatchObject({ operationState: 'done', newKeyIsSafe: false })
      expect(isReplay(first)).toBe(false)
      expect(isReplay(again)).toBe(true)
      expect(await effects()).toEqual(['paid'])
    })

    it('too large, with a way to make it again: the same for the first and later', async () => {
      const [first, again] = await twice('/rebuilt')
      expect(first.status).toBe(201)
      expect(first.body.toString()).toBe(`${first.headers.location} `.repeat(10_000))
      expect(again.body.equals(first.body)).toBe(true)
      expect(again.headers.location).toBe(first.headers.location)
      expect([isReplay(first), isReplay(again)]).toEqual([false, true])
      expect(await effects()).toEqual(['rebuilt'])
    })

    it('a stream is refused', async () => {
      for (const path of pipes ? ['/events', '/piped'] : ['/events'])
        expectProblem(await send(path), 500, 'response-not-kept')
      expect((await send('/orders', item)).status).toBe(201)
    })

    it('leased, and held if it is ambiguous: what was refused may be tried again, what failed may not', async () => {
      const refused = await twice('/paid-status/429')
      expect(refused.map(({ status }) => status)).toEqual([429, 429])
      const failed = await twice('/paid-status/500')
      expect(failed[0].status).toBe(500)
      expectProblem(failed[1], 409, 'ambiguous')
      expect(failed[1].json).toMatchObject({ operationState: 'unknown', newKeyIsSafe: false })
      expect(await effects()).toEqual(['paid status 429', 'paid status 429', 'paid status 500'])
    })

    if (validates) {
      it('what is refused before the handler is not stored', async () => {
        const key = randomUUID()
        const bad = await send('/validated', { key, body: { other: 1 } })
        expect(bad.status).toBe(400)
        const amended = await send('/validated', { key, body: { item: 1 } })
        expect(amended).toMatchObject({ status: 200, json: { fine: true } })
      })
    }

    it("in a transaction of the application's own", async () => {
      const key = randomUUID()
      const ask = (status: number, of = key) => send('/own', { key: of, body: { status } })
      const first = await ask(201)
      const again = await ask(201)
      expect(again.body.equals(first.body)).toBe(true)
      expect(isReplay(again)).toBe(true)
      const refused = randomUUID()
      expect((await ask(422, refused)).status).toBe(422)
      expect(isReplay(await ask(422, refused))).toBe(true)
      const failed = randomUUID()
      expect((await ask(500, failed)).status).toBe(500)
      expect(isReplay(await ask(500, failed))).toBe(false)
      expect(await effects()).toEqual(['own 201'])
    })
  })

  describe('a handler that does not answer', () => {
    it('joined: it is ended, and nothing was done', async () => {
      const answer = await send('/never')
      expectProblem(answer, 504, 'timed-out')
      expect(answer.json).toMatchObject({ operationState: 'not done', newKeyIsSafe: true })
      expect(await effects()).toEqual([])
    })

    it('leased: the client is told, and its outcome is stored if it comes', async () => {
      const key = randomUUID()
      const headers = { 'x-gate': key }
      const answer = await send('/paid-too-late', { key, headers })
      expectProblem(answer, 504, 'timed-out')
      expect(answer.json).toMatchObject({ operationState: 'running', newKeyIsSafe: false })
      await openGate(key)
      const next = await insist('/paid-too-late', { key, headers })
      expect(next.body.toString()).toBe('late')
      expect(next.headers['content-type'] ?? '').not.toContain('problem')
      expect(next.headers['retry-after']).toBeUndefined()
      expect(await effects()).toEqual(['paid'])
    })
  })

  it('statuses, types and bodies of problems can be others', async () => {
    const path = '/statuses'
    const missing = await ask(running.port, path, item)
    expect(missing.status).toBe(428)
    expect(missing.json).toEqual({
      type: 'https://example.com/problems/key-missing',
      message: expect.any(String),
    })
    const key = randomUUID()
    const headers = { 'x-gate': key }
    const first = send(path, { ...item, key, headers })
    await arrived(key)
    expect((await send(path, { ...item, key, headers })).status).toBe(425)
    expect((await send(path, { key, headers, body: {} })).status).toBe(409)
    await openGate(key)
    await first
  })

  if (readsBody) {
    it('a request that is too long is 413', async () => {
      for (const isChunked of [false, true]) {
        const answer = await send('/orders', { body: { item: 'x'.repeat(1_100_000) }, isChunked })
        expectProblem(answer, 413, 'request-too-large')
      }
      expect(await effects()).toEqual([])
    })
  }

  it('a rate limit: headers, and 429 with Retry-After', async () => {
    const user = randomUUID()
    const get = () => ask(running.port, '/limited', { method: 'GET', headers: { 'x-user': user } })
    const first = await get()
    expect(first).toMatchObject({ status: 200, json: { fine: true } })
    expect(first.headers['ratelimit-policy']).toBe('"api";q=3;w=3600')
    expect(first.headers.ratelimit).toMatch(/^"api";r=2;t=\d+$/)
    expect(first.headers['x-ratelimit-remaining']).toBe('2')
    await get()
    await get()
    const refused = await get()
    expectProblem(refused, 429, 'rate-limited')
    expect(refused.headers.ratelimit).toMatch(/^"api";r=0;t=\d+$/)
    expect(Number(refused.headers['retry-after'])).toBeGreaterThan(0)
    expect(refused.json).not.toHaveProperty('newKeyIsSafe') // it knows no keys
  })
}
