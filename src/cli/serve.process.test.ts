import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { directUrl, dropSchema, freshName, withPool } from '../../test/database.js'
import { deferred } from '../../test/deferred.js'
import { newFolder } from '../../test/embedded.js'
import { processesOf, serversOf, supervisorsOf } from '../../test/processes.js'
import { password, type StartedCli, startCli, urlWithPassword } from '../../test/start-cli.js'
import { until } from '../../test/until.js'
import { PgProxy } from '../testing/proxy/pg-proxy.js'

interface Served extends StartedCli {
  readonly schema: string
}

/** `dibs serve` on a free port and a schema of its own. */
function serve({ url = directUrl, port = 0 } = {}): Served {
  const schema = freshName()
  onTestFinished(() => dropSchema(schema))
  const args = ['serve', '--url', urlWithPassword(url), '--schema', schema, '--port', `${port}`]
  return Object.assign(startCli(args), { schema })
}

const ready = async (cli: StartedCli): Promise<string> => `${(await cli.says(/^Ready on (http\S+)$/m))[1]}`
const listening = async (cli: StartedCli): Promise<string> =>
  `${(await cli.says(/^Listening on (http[^\s,]+)/m))[1]}`

const ask = async (at: string): Promise<[status: number, body: unknown]> => {
  const response = await fetch(at)
  return [response.status, await response.json()]
}
const statusOf = async (at: string): Promise<number> => (await ask(at))[0]

/** Holds back whoever wants to migrate `schema`, until let go. */
async function holdMigrations(schema: string): Promise<() => Promise<void>> {
  const held = deferred()
  const done = deferred()
  const holding = withPool(
    async (pool) => {
      const client = await pool.connect()
      await client.query('select pg_advisory_lock(hashtextextended($1, 0))', [`dibs.migrate:${schema}`])
      held.resolve()
      await done.promise
      client.release(true)
    },
    { connectionString: directUrl },
  )
  const release = (): Promise<void> => {
    done.resolve()
    return holding
  }
  onTestFinished(release)
  await Promise.race([held.promise, holding])
  return release
}

/** A `dibs serve` that has not opened its database, until `release` is called. */
async function serveHeld(): Promise<Served & { readonly at: string; release: () => Promise<void> }> {
  const schema = freshName()
  onTestFinished(() => dropSchema(schema))
  const release = await holdMigrations(schema)
  const cli = startCli(['serve', '--url', urlWithPassword(), '--schema', schema, '--port', '0'])
  const at = await listening(cli)
  await cli.says(/^Waiting for another process that migrates/m)
  return Object.assign(cli, { schema, at, release })
}

it('migrates, says where it is, and answers the probes', async () => {
  const cli = serve()
  const at = await ready(cli)
  await cli.says(/Ctrl-C stops it/)
  const where = new URL(directUrl)
  expect(cli.output).toMatch(/^Applied migration 1 \(clock\) in \d+ ms$/m)
  expect(cli.output).toContain(`${where.host}${where.pathname}, schema "${cli.schema}" at version`)
  expect(await ask(`${at}/healthz`)).toMatchObject([
    200,
    { ok: true, schema: cli.schema, database: 'reachable' },
  ])
  expect(await ask(`${at}/readyz`)).toEqual([200, { ready: true }])
  expect(await statusOf(`${at}/`)).toBe(404)
  expect((await fetch(`${at}/healthz`, { method: 'DELETE' })).status).toBe(405)
})

it.each(['SIGTERM', 'SIGINT'] as const)('ends with 0 at %s', async (signal) => {
  const cli = serve()
  const at = await ready(cli)
  await statusOf(`${at}/healthz`) // leaves a connection open, as fetch keeps it
  cli.kill(signal)
  expect(await cli.exit).toBe(0)
  expect(cli.output).toMatch(/^Stopping …$/m)
  expect(cli.errors).toBe('')
  await expect(fetch(at)).rejects.toThrow()
})

it('takes the Ctrl-C that npm hands on for the one it had', async () => {
  const schema = freshName()
  onTestFinished(() => dropSchema(schema))
  const args = ['serve', '--url', urlWithPassword(), '--schema', schema, '--port', '0']
  const cli = startCli(args, { npm_lifecycle_event: 'start' })
  await ready(cli)
  cli.kill('SIGINT')
  cli.kill('SIGINT')
  expect(await cli.exit).toBe(0)
})

it('is starting until the database is open', async () => {
  const cli = await serveHeld()
  expect(await ask(`${cli.at}/healthz`)).toEqual([503, { ok: false, problem: 'starting' }])
  expect(await ask(`${cli.at}/readyz`)).toEqual([503, { ready: false, problem: 'starting' }])
  await cli.release()
  expect(await ready(cli)).toBe(cli.at)
  expect(await statusOf(`${cli.at}/readyz`)).toBe(200)
})

it('stops in order when told to while it starts', async () => {
  const cli = await serveHeld()
  cli.kill('SIGTERM')
  await cli.says(/^Stopping …$/m)
  await until(
    () =>
      fetch(cli.at).then(
        () => false,
        () => true,
      ),
    'HTTP to be closed',
  )
  await cli.release()
  expect(await cli.exit).toBe(0)
  expect(cli.output).toMatch(/^Applied migration 1/m) // what had begun was brought to its end
  expect(cli.output).not.toMatch(/^Ready/m)
  expect(cli.errors).toBe('')
})

it('ends with 0 when told to stop while it waits for a server that never answers', async () => {
  await using proxy = await PgProxy.start({ url: directUrl })
  proxy.inject({ kind: 'black-hole' })
  const cli = serve({ url: proxy.url })
  await listening(cli)
  cli.kill('SIGINT')
  expect(await cli.exit).toBe(0)
  expect(cli.errors).toBe('')
})

it.each([
  ['SIGINT', 130],
  ['SIGTERM', 143],
] as const)('ends at once at a second signal, %s with %i', async (signal, code) => {
  const cli = await serveHeld()
  cli.kill('SIGTERM')
  await cli.says(/^Stopping …$/m)
  cli.kill(signal)
  expect(await cli.exit).toBe(code)
})

it('names the port that is taken, and opens no database', async () => {
  const first = serve()
  const { port } = new URL(await ready(first))
  const second = serve({ port: Number(port) })
  expect(await second.exit).toBe(1)
  expect(second.errors).toMatch(new RegExp(`^error: \`port\` ${port} on 127.0.0.1 is taken`))
  expect(second.output).toBe('')
  const found = await withPool((pool) =>
    pool.query('select 1 from pg_namespace where nspname = $1', [second.schema]),
  )
  expect(found.rows).toEqual([])
})

it('tells in one message that there is no server, and ends with 1', async () => {
  const cli = serve({ url: 'postgres://app@127.0.0.1:1/shop' })
  expect(await cli.exit).toBe(1)
  expect(cli.errors).toMatch(/^error: Cannot connect to postgres:\/\/app@127\.0\.0\.1:1\/shop: .*\n$/)
})

it.each([
  ['a URL', ['--url', `me:${password}@localhost`], /^error: `url` must start with postgres:.*\n$/],
  ['a schema', ['--url', urlWithPassword(), '--schema', 'my schema'], /^error: `schema` must be .*\n$/],
  ['a port', ['--port', '65536'], /^error: option '--port <port>' .* from 0 to 65535.*\n$/],
  ['a port in words', ['--port', '0x10'], /^error: option '--port <port>' .* from 0 to 65535.*\n$/],
  [
    'two databases',
    ['--url', urlWithPassword(), '--dir', '/x'],
    /^error: .*--dir.* cannot be used with .*\n$/,
  ],
  ['another command', ['--', 'now'], /^error: too many arguments.*\n$/],
])('refuses %s that cannot be, without a stack', async (_, args, message) => {
  const cli = startCli(['serve', ...args])
  expect(await cli.exit).toBe(1)
  expect(cli.errors).toMatch(message)
})

it('takes DATABASE_URL', async () => {
  const schema = freshName()
  onTestFinished(() => dropSchema(schema))
  const cli = startCli(['serve', '--schema', schema, '--port', '0'], { DATABASE_URL: urlWithPassword() })
  expect(await statusOf(`${await ready(cli)}/readyz`)).toBe(200)
})

it('is unwell while the database does not answer, and well again after', async () => {
  await using proxy = await PgProxy.start({ url: directUrl })
  const cli = serve({ url: proxy.url })
  const at = await ready(cli)
  proxy.inject({ kind: 'black-hole' })
  await until(async () => (await statusOf(`${at}/healthz`)) === 503, 'an answer that it is not well')
  expect(await ask(`${at}/readyz`)).toMatchObject([503, { ready: false, problem: /./ }])
  proxy.inject({ kind: 'heal' })
  await until(async () => (await statusOf(`${at}/healthz`)) === 200, 'an answer that it is well')
  expect(await statusOf(`${at}/readyz`)).toBe(200)
  cli.kill('SIGTERM')
  expect(await cli.exit).toBe(0)
}, 40_000)

it('ends soon though the network has gone silent', async () => {
  await using proxy = await PgProxy.start({ url: directUrl })
  const cli = serve({ url: proxy.url })
  await ready(cli)
  proxy.inject({ kind: 'black-hole' }) // which not even a goodbye leaves
  cli.kill('SIGTERM')
  expect(await cli.exit).toBe(0)
})

it('knows its version and its commands', async () => {
  const version = startCli(['--version'])
  expect(await version.exit).toBe(0)
  expect(version.output).toMatch(/^\d+\.\d+\.\d+/)
  const help = startCli(['--help'])
  expect(await help.exit).toBe(0)
  expect(help.output).toMatch(/serve .*[\s\S]*migrate /)
  const unknown = startCli(['server'])
  expect(await unknown.exit).toBe(1)
  expect(unknown.errors).toMatch(/^error: unknown command 'server'/)
})

it('brings its own PostgreSQL, and leaves none behind', async () => {
  const folder = newFolder()
  const dir = join(folder, 'home')
  const cli = startCli(['serve', '--dir', dir, '--port', '0'], { DATABASE_URL: urlWithPassword() })
  const at = await ready(cli)
  expect(cli.output).toContain(`Initializing a PostgreSQL in ${dir} (once) …`)
  expect(cli.output).toContain(`Starting the PostgreSQL in ${dir} …`)
  expect(cli.output).toMatch(/^Applied migration 1/m)
  expect(await statusOf(`${at}/readyz`)).toBe(200)
  expect([supervisorsOf(dir).length, serversOf(dir).length]).toEqual([1, 1])
  const secret = readFileSync(join(dir, 'password'), 'utf8').trim()
  cli.kill('SIGTERM')
  expect(await cli.exit).toBe(0)
  expect(cli.output + cli.errors).not.toContain(secret)
  await until(() => processesOf(folder).length === 0, 'the server and its supervisor to end', 30_000)
})
