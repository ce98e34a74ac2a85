import { chmodSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { TestProject } from 'vitest/node'
import { requireFreshBuild } from './load-build.js'
import { pgBouncerVersion, startPgBouncer } from './pgbouncer.js'
import { postgres14, systemPostgres } from './postgres-installations.js'
import { type PostgresServer, startPostgres } from './postgres-server.js'
import { endProcesses, processesOf } from './processes.js'
import { until } from './until.js'

declare module 'vitest' {
  interface ProvidedContext {
    /** The servers of this run: `usual`, and those of projects that run on another. */
    servers: Record<string, string | undefined>
    /** Through PgBouncer, where that is installed. */
    pgBouncerUrl: string | undefined
  }
}

/** The servers for the whole run, or that of TEST_DATABASE_URL, and one PgBouncer in front of the oldest. */
export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  requireFreshBuild()
  const leaveRun = enterRun()
  const servers = await startServers(project)
  const { usual, 'postgres-14': oldest, 'postgres-system': system } = servers
  const behind = oldest ?? system ?? usual
  const bouncer = pgBouncerVersion() ? await startPgBouncer(`${behind?.url}`) : undefined
  const urls = Object.entries(servers).map(([name, server]) => [name, server?.url])
  project.provide('servers', Object.fromEntries(urls))
  project.provide('pgBouncerUrl', bouncer?.url)
  return async () => {
    await bouncer?.stop()
    await Promise.all(Object.values(servers).map((server) => server?.stop()))
    await leaveRun()
  }
}

async function startServers(project: TestProject): Promise<Record<string, PostgresServer | undefined>> {
  const given = process.env.TEST_DATABASE_URL
  if (given) return { usual: { url: given, stop: async () => {} } }
  const named = new Set(project.vitest.projects.map(({ config }) => config.env?.DIBS_TEST_ON))
  const start = (name: string, binaries: string | undefined) =>
    named.has(name) && binaries ? startPostgres({ binaries }) : undefined
  const [usual, oldest, system] = await Promise.all([
    startPostgres(),
    start('postgres-14', postgres14),
    start('postgres-system', systemPostgres?.bin),
  ])
  return { usual, 'postgres-14': oldest, 'postgres-system': system }
}

/** One folder for all temporary files of the run. A process that still uses it at the end, or a server's folder, fails it. */
function enterRun(): () => Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'dibs-test-'))
  chmodSync(folder, 0o755) // as root, servers run as another user
  process.env.TMPDIR = folder
  return async () => {
    const left = () => [
      ...processesOf(folder).map(({ command }) => command),
      ...readdirSync(folder).filter((name) => name.startsWith('dibs-temporary-')),
    ]
    await until(() => left().length === 0, 'supervisors and servers of this run to end').catch(() => {})
    const found = left()
    await endProcesses(folder)
    rmSync(folder, { recursive: true, force: true })
    if (found.length > 0) throw new Error(`The tests left behind:\n${found.join('\n')}`)
  }
}
