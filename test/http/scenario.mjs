// The routes of the conformance suite, without a framework. Each application in apps/ serves them in its own way.
import { createGunzip, createInflate, gunzipSync, inflateSync } from 'node:zlib'
import { Dibs } from 'dibs'
import pg from 'pg'

export const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 10 })
pool.on('error', () => {})
export const dibs = await Dibs.open({
  url: process.env.DATABASE_URL,
  schema: process.env.DIBS_SCHEMA,
  migrate: 'off',
  listen: false,
})

const T = process.env.DIBS_TABLES

/** `request` has `header(name)`. */
export const base = (headerOf) => ({
  scope: (request) => [headerOf(request, 'x-tenant') ?? 'none', headerOf(request, 'x-user') ?? 'nobody'],
})

const insert = (db, what) => db.query(`insert into ${T}.effects (what) values ($1) returning id`, [what])

/** A transaction of the application's own. */
async function onClient(work) {
  const client = await pool.connect()
  try {
    await client.query('begin')
    await work(client, client)
    await client.query('commit')
  } catch (error) {
    await client.query('rollback')
    throw error
  } finally {
    client.release()
  }
}

/** Waits until the test lets it go, and says that it is there. */
async function atGate(name) {
  await pool.query(`insert into ${T}.arrived (name) values ($1)`, [name])
  for (;;) {
    const { rowCount } = await pool.query(`select from ${T}.gates where name = $1`, [name])
    if (rowCount > 0) return
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

const created = async ({ claimed, body }) => {
  const { rows } = await insert(claimed().tx, `order ${body?.item}`)
  return {
    status: 201,
    headers: { location: `/orders/${rows[0].id}`, 'x-order': String(rows[0].id), 'set-cookie': 'a=1' },
    body: { id: rows[0].id, item: body?.item },
  }
}

const withStatus = async ({ claimed, params }) => {
  await insert(claimed().tx, `status ${params.status}`)
  const { rows } = await pool.query(`select nextval('${T}.runs') as n`)
  return { status: Number(params.status), body: { run: rows[0].n } }
}

const waitsAtGate = async ({ claimed, header }) => {
  const { rows } = await insert(claimed().tx, 'slow')
  await atGate(header('x-gate'))
  return { status: 200, body: { id: rows[0].id } }
}

const dies = async (db, header) => {
  await insert(db, 'died')
  if (header('x-die')) process.kill(process.pid, 'SIGKILL')
  return { status: 200, body: 'lives' }
}

/** Each has a path, options beside the scope, and a handler. */
export const routes = [
  ...['POST', 'PUT', 'PATCH'].map((method) => ({ method, path: '/orders', handle: created })),
  { method: 'DELETE', path: '/deletable', options: { methods: ['DELETE'] }, handle: created },
  { method: 'DELETE', path: '/orders', handle: async () => ({ status: 200, body: 'untouched' }) },
  { method: 'GET', path: '/orders', handle: async () => ({ status: 200, body: 'untouched' }) },
  {
    method: 'POST',
    path: '/paths/:name',
    options: { normalizePath: (path) => path.toLowerCase() },
    handle: created,
  },
  { method: 'POST', path: '/gate', handle: waitsAtGate },
  { method: 'POST', path: '/waits', options: { waitMs: 10_000 }, handle: waitsAtGate },
  {
    method: 'POST',
    path: '/own',
    options: {
      keepsWrites: (status) => status < 400,
      transaction: onClient,
    },
    async handle({ claimed, body }) {
      const { rows } = await insert(claimed(onClient).tx, `own ${body.status}`)
      return { status: body.status, body: { id: rows[0].id } }
    },
  },
  {
    method: 'POST',
    path: '/paid',
    options: { mode: 'leased' },
    async handle({ claimed, body }) {
      const { claim } = claimed()
      await insert(pool, `paid ${body?.amount}`)
      return { status: 200, body: { key: claim.idempotencyKey, attempt: claim.attempt } }
    },
  },
  {
    method: 'POST',
    path: '/paid-at-gate',
    options: { mode: 'leased' },
    async handle({ claimed, header }) {
      await insert(pool, 'paid')
      await atGate(header('x-gate'))
      return { status: 200, body: { attempt: claimed().claim.attempt } }
    },
  },
  {
    method: 'POST',
    path: '/paid-too-late',
    options: { mode: 'leased', deadlineMs: 2_000 },
    async handle({ header }) {
      await insert(pool, 'paid')
      await atGate(header('x-gate'))
      return { status: 200, body: 'late' }
    },
  },
  {
    method: 'POST',
    path: '/paid-status/:status',
    options: { mode: 'leased', onAmbiguous: 'hold' },
    async handle({ params }) {
      await insert(pool, `paid status ${params.status}`)
      return { status: Number(params.status), body: 'as told' }
    },
  },
  {
    method: 'POST',
    path: '/paid-large',
    options: { mode: 'leased', maxResponseBytes: 100 },
    async handle() {
      await insert(pool, 'paid')
      return { status: 200, body: 'x'.repeat(101) }
    },
  },
  { method: 'POST', path: '/dies', handle: ({ claimed, header }) => dies(claimed().tx, header) },
  {
    method: 'POST',
    path: '/dies-leased',
    options: { mode: 'leased', leaseMs: 3_000 },
    handle: ({ header }) => dies(pool, header),
  },
  { method: 'POST', path: '/status/:status', handle: withStatus },
  { method: 'POST', path: '/v1/:status', options: { store: 'stripe-v1' }, handle: withStatus },
  { method: 'POST', path: '/v2/:status', options: { store: 'stripe-v2' }, handle: withStatus },
  {
    method: 'POST',
    path: '/throws',
    async handle({ claimed }) {
      await insert(claimed().tx, 'thrown')
      throw new Error('boom')
    },
  },
  {
    method: 'POST',
    path: '/swallows',
    async handle({ claimed }) {
      await insert(claimed().tx, 'swallowed')
      await claimed()
        .tx.query('select 1 / 0')
        .catch(() => {})
      return { status: 200, body: 'as if' }
    },
  },
  {
    method: 'POST',
    path: '/large',
    options: { maxResponseBytes: 1_000 },
    async handle({ claimed, header }) {
      await insert(claimed().tx, 'large')
      return { status: 200, body: 'x'.repeat(Number(header('x-bytes'))) }
    },
  },
  {
    method: 'POST',
    path: '/rebuilt',
    options: {
      maxResponseBytes: 100,
      large: {
        reference: ({ headers }) => headers.get('location'),
        rebuild: (reference) => new Response(`${reference} `.repeat(10_000)),
      },
    },
    async handle({ claimed }) {
      const { rows } = await insert(claimed().tx, 'rebuilt')
      return { status: 201, headers: { location: `/r/${rows[0].id}` }, body: 'y'.repeat(1_000) }
    },
  },
  ...Object.entries({
    '/bytes': [255, 254, 10, 13, 34, 92, 195, 40],
    '/nul': [116, 0, 101],
  }).map(([path, bytes]) => ({
    method: 'POST',
    path,
    async handle({ claimed }) {
      await insert(claimed().tx, 'bytes')
      const headers = { 'content-type': 'application/octet-stream' }
      return { status: 200, headers, body: Buffer.from(bytes) }
    },
  })),
  {
    method: 'POST',
    path: '/text',
    async handle({ claimed }) {
      await insert(claimed().tx, 'text')
      return {
        status: 200,
        headers: { 'content-type': 'text/plain; charset=utf-8' },
        body: '\ufeffü "漢" \\ 😀\n',
      }
    },
  },
  {
    method: 'POST',
    path: '/empty',
    async handle({ claimed }) {
      await insert(claimed().tx, 'empty')
      return { status: 204 }
    },
  },
  {
    method: 'POST',
    path: '/optional',
    options: { required: false },
    async handle({ claimed, body }) {
      await insert(claimed().tx, `optional ${claimed().key}`)
      return { status: body?.status ?? 200, body: { key: claimed().key ?? null } }
    },
  },
  {
    method: 'POST',
    path: '/optional-leased',
    options: { required: false, mode: 'leased' },
    async handle({ claimed }) {
      await insert(pool, 'optional')
      return { status: 200, body: { key: claimed().key ?? null } }
    },
  },
  { method: 'POST', path: '/anonymous', options: { scope: 'anonymous' }, handle: created },
  {
    method: 'POST',
    path: '/headers',
    options: { fingerprintHeaders: ['X-Version'], replayHeaders: ['X-Order'] },
    handle: created,
  },
  {
    method: 'POST',
    path: '/webhook',
    options: (headerOf) => ({ key: (request) => headerOf(request, 'x-event') }),
    handle: created,
  },
  { method: 'POST', path: '/uuid', options: { keyPattern: /^[0-9a-f-]{36}$/g }, handle: created },
  {
    method: 'POST',
    path: '/statuses',
    options: {
      statuses: { keyMissing: 428, inProgress: 425, keyReused: 409 },
      problemTypes: 'https://example.com/problems/',
      problemBody: ({ type, detail }) => ({ type, message: detail }),
    },
    handle: waitsAtGate,
  },
  {
    method: 'POST',
    path: '/never',
    options: { deadlineMs: 2_000 },
    async handle({ claimed }) {
      await insert(claimed().tx, 'never')
      return await new Promise(() => {})
    },
  },
]

export const api = dibs.rateLimit('api', { algorithm: 'fixed-window', limit: 3, perMs: 3_600_000 })
export const limited = (headerOf) => ({
  subject: (request) => headerOf(request, 'x-user') ?? 'nobody',
  legacyHeaders: true,
})

/** The options of a route. */
export const optionsOf = ({ options = {} }, headerOf) => ({
  ...base(headerOf),
  ...(typeof options === 'function' ? options(headerOf) : options),
})

/** Says where it listens; ends with the test. */
export function announce(server) {
  console.log(`listening on ${server.address().port}`)
  process.on('disconnect', () => process.exit())
}

/** The body of an answer as bytes or text, and its type. */
export function render({ body, headers = {} }) {
  if (body === undefined || typeof body === 'string' || Buffer.isBuffer(body)) return { body, headers }
  return { body: JSON.stringify(body), headers: { 'content-type': 'application/json', ...headers } }
}

/** For frameworks that do not unpack what is sent: as an application would do it. */
export const unpack = (bytes, encoding) =>
  encoding === 'gzip' ? gunzipSync(bytes) : encoding === 'deflate' ? inflateSync(bytes) : bytes

/** The function above as a hook of Fastify. */
export async function unpackStream(request, _reply, payload) {
  const encoding = request.headers['content-encoding']
  if (!encoding) return payload
  const unpacked = payload.pipe(encoding === 'gzip' ? createGunzip() : createInflate())
  unpacked.receivedEncodedLength = Number(request.headers['content-length'])
  return unpacked
}
