// Cost of the idempotency middleware per request: one route of a real server, with and without it, over real HTTP.
import { fork } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { Agent, request } from 'node:http'
import { join } from 'node:path'
import pg from 'pg'

export async function httpContest(url) {
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  pool.on('error', () => {}) // of connections that end with the server
  await pool.query(`
    create table if not exists http_counter (id int primary key, n bigint not null);
    insert into http_counter select g, 0 from generate_series(1, 1000) g on conflict do nothing`)
  const app = fork(join(import.meta.dirname, 'http-app.mjs'), { env: { ...process.env, DATABASE_URL: url } })
  const [ports] = await once(app, 'message')
  const agent = new Agent({ keepAlive: true, maxSockets: 24 })
  const body = JSON.stringify({ item: 'tea', amount: 12, note: 'x'.repeat(200) })

  const ask = (port, path, key) =>
    new Promise((resolve, reject) => {
      const headers = {
        'content-type': 'application/json',
        'content-length': body.length,
        'x-user': 'u',
        'idempotency-key': key,
      }
      const asked = request({ host: '127.0.0.1', port, path, method: 'POST', headers, agent }, (response) => {
        response.resume()
        response.on('end', () =>
          response.statusCode === 200
            ? resolve(response)
            : reject(new Error(`${path}: ${response.statusCode}`)),
        )
      })
      asked.on('error', reject)
      asked.end(body)
    })
  const first = (port, path) => () => ask(port, path, randomUUID())
  const again = (port, path) => {
    const key = randomUUID()
    return () => ask(port, path, key)
  }
  await ask(ports.express, '/joined', 'k')
  const replay = await ask(ports.express, '/joined', 'k')
  if (replay.headers['idempotency-replayed'] !== 'true') throw new Error('it does not replay')

  const contests = [1, 24].flatMap((inFlight) => [
    {
      name: 'http: joined, Express',
      inFlight,
      contestants: {
        'without it': first(ports.express, '/plain'),
        'first call': first(ports.express, '/joined'),
        replay: again(ports.express, '/joined'),
      },
    },
    {
      name: 'http: joined, node:http',
      inFlight,
      contestants: {
        'without it': first(ports.node, '/plain'),
        'first call': first(ports.node, '/joined'),
        replay: again(ports.node, '/joined'),
      },
    },
    {
      name: 'http: leased, Express, no work at all',
      inFlight,
      contestants: {
        'without it': first(ports.express, '/outside'),
        'first call': first(ports.express, '/leased'),
        replay: again(ports.express, '/leased'),
      },
    },
  ])
  return {
    contests,
    async close() {
      agent.destroy()
      app.disconnect()
      await once(app, 'exit')
      await pool.end()
    },
  }
}
