import { once } from 'node:events'
import { existsSync, linkSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { dirname, join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { newFolder, Opener, untilStopped } from '../../../test/embedded.js'
import { keepersOf, processesOf, serversOf } from '../../../test/processes.js'
import { until } from '../../../test/until.js'
import { freePort } from './free-port.js'
import { keeperAddress } from './keeper-address.js'
import { fastSettings } from './settings.js'

// Real processes, real kills, on durable settings: what was committed must be there afterwards.
const patient = { timeout: 60_000 }

const write = async (by: Opener): Promise<void> => {
  await by.query('create table if not exists kept (at timestamptz default now())')
  await by.query('insert into kept default values')
}
const count = async (by: Opener) => Number((await by.query('select count(*) as n from kept'))[0]?.n)
const kill = (pids: readonly number[], signal: NodeJS.Signals = 'SIGKILL') => {
  expect(pids.length).toBeGreaterThan(0)
  for (const pid of pids) process.kill(pid, signal)
}
const one = (pids: readonly number[]): number => {
  expect(pids).toHaveLength(1)
  return Number(pids[0])
}

describe('one server for all who name a folder', patient, () => {
  it('is in ./.dibs when nothing is given, durable, for this machine and its owner alone', async () => {
    const cwd = newFolder()
    const opener = Opener.spawn(undefined, { cwd, env: { NODE_ENV: 'test' } })
    const { url, steps } = await opener.opened()
    expect(steps).toEqual(expect.arrayContaining(['initializing', 'starting']))
    const dir = join(cwd, '.dibs')
    expect(statSync(join(dir, 'password')).mode & 0o777).toBe(0o600)
    expect(statSync(join(dir, 'data')).mode & 0o777).toBe(0o700)
    expect(new URL(url).password).toBe(readFileSync(join(dir, 'password'), 'utf8').trim())
    expect(readFileSync(join(dir, '.gitignore'), 'utf8')).toBe('*\n')
    const [settings] = await opener.query(
      `select current_setting('fsync') as fsync, current_setting('full_page_writes') as full_page_writes,
              current_setting('synchronous_commit') as synchronous_commit, current_setting('listen_addresses') as at,
              current_setting('unix_socket_directories') as sockets, upper('äé') as upper,
              (select count(*)::int from pg_hba_file_rules where auth_method <> 'scram-sha-256') as unguarded`,
    )
    expect(settings).toEqual({
      fsync: 'on',
      full_page_writes: 'on',
      synchronous_commit: 'on',
      at: '127.0.0.1',
      sockets: '',
      upper: 'ÄÉ',
      unguarded: 0,
    })
    await opener.close()
    await untilStopped(dir)
  })

  it('ten that open it at once share one, however they race', async () => {
    const dir = newFolder()
    const openers = Array.from({ length: 10 }, () => Opener.spawn({ dir }))
    const opened = await Promise.all(openers.map((opener) => opener.opened()))
    expect(new Set(opened.map(({ url }) => url)).size).toBe(1)
    one(serversOf(dir))
    await until(() => keepersOf(dir).length === 1, 'the keepers that came late to end')
    await write(openers[0] as Opener)
    expect(await Promise.all(openers.map(count))).toEqual(Array(10).fill(1))
    await Promise.all(openers.map((opener) => opener.close()))
    await untilStopped(dir)
  })

  it('stays for two seconds after the last, then keeps port and data for the next', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    const server = one(serversOf(dir))
    await write(first)
    await first.close()
    const second = await Opener.open({ dir })
    expect(one(serversOf(dir))).toBe(server)
    const { url } = second
    await second.close()
    await untilStopped(dir)
    const third = await Opener.open({ dir })
    expect(third.url).toBe(url)
    expect(await count(third)).toBe(1)
  })

  it('refuses other settings or another port than it runs with', async () => {
    const dir = newFolder()
    const port = await freePort()
    const first = await Opener.open({ dir, port, settings: { work_mem: '8MB' } })
    expect(new URL(first.url).port).toBe(String(port))
    expect(await first.query('show work_mem')).toEqual([{ work_mem: '8MB' }])
    await Opener.open({ dir }) // does not mind
    await Opener.open({ dir, port, settings: { work_mem: '8MB' } })
    const other = await Opener.spawn({ dir, settings: { work_mem: '9MB' } }).failure()
    expect(other).toMatchObject({ reason: 'already-running', message: expect.stringContaining('"8MB"') })
    const elsewhere = await Opener.spawn({ dir, port: port === 65_535 ? 1024 : port + 1 }).failure()
    expect(elsewhere).toMatchObject({
      reason: 'already-running',
      message: expect.stringContaining(`already runs with port ${port}, not`),
    })
  })

  it('is another for another folder', async () => {
    const [here, there] = [newFolder(), newFolder()]
    const openers = await Promise.all([here, there].map((dir) => Opener.open({ dir })))
    expect(openers[0]?.url).not.toBe(openers[1]?.url)
    expect([...serversOf(here), ...serversOf(there)]).toHaveLength(2)
  })
})

describe('kill -9', patient, () => {
  it('of one process: the others go on', async () => {
    const dir = newFolder()
    const [victim, survivor] = [await Opener.open({ dir }), await Opener.open({ dir })]
    const server = one(serversOf(dir))
    await write(victim)
    await victim.kill()
    await write(survivor)
    expect(await count(survivor)).toBe(2)
    expect(one(serversOf(dir))).toBe(server)
    await survivor.close()
    await untilStopped(dir)
  })

  it('of all processes: the server is shut down, and the next finds their data', async () => {
    const dir = newFolder()
    const openers = await Promise.all([1, 2, 3].map(() => Opener.open({ dir })))
    await write(openers[0] as Opener)
    await Promise.all(openers.map((opener) => opener.kill()))
    await untilStopped(dir)
    expect(readFileSync(join(dir, 'postgres.log'), 'utf8')).toContain('database system is shut down')
    expect(await count(await Opener.open({ dir }))).toBe(1)
  })

  it('of the keeper: a successor adopts the server, and waits for all who lost the first before it counts', async () => {
    const dir = newFolder()
    const [awake, asleep] = [await Opener.open({ dir }), await Opener.open({ dir })]
    const server = one(serversOf(dir))
    const keeper = one(keepersOf(dir))
    process.kill(asleep.pid, 'SIGSTOP') // it cannot come back yet
    kill([keeper])
    await until(() => keepersOf(dir).some((pid) => pid !== keeper), 'a successor')
    await write(awake)
    await (await Opener.open({ dir })).close() // newcomers find the successor
    await awake.close()
    const closedAt = Date.now()
    // Longer than a keeper waits after the last, shorter than a successor does.
    await until(() => Date.now() - closedAt > 4_000, 'four seconds')
    process.kill(asleep.pid, 'SIGCONT')
    expect(await count(asleep)).toBe(1)
    expect(one(serversOf(dir))).toBe(server)
    await asleep.close()
    await until(() => serversOf(dir).length === 0, 'the server to end', 15_000)
    await untilStopped(dir)
  })

  it('of the server: its keeper starts it again on the same port, and processes go on', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    await write(opener)
    const server = one(serversOf(dir))
    kill([server])
    await until(() => serversOf(dir).some((pid) => pid !== server), 'another server') // the old backends may answer on
    expect(await opener.queryUntilAnswered('select count(*) as n from kept')).toEqual([{ n: '1' }])
    one(serversOf(dir))
    await opener.close()
    await untilStopped(dir)
  })

  it('of keeper and server: the process that is left brings both back', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir, settings: { work_mem: '7MB' } })
    await write(opener)
    kill([...keepersOf(dir), ...serversOf(dir)])
    expect(await opener.queryUntilAnswered('select count(*) as n from kept')).toEqual([{ n: '1' }])
    expect(await opener.query('show work_mem')).toEqual([{ work_mem: '7MB' }]) // as it was started before
    one(keepersOf(dir))
  })

  it('of everything: the next open recovers', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    await write(opener)
    await opener.kill()
    kill([...keepersOf(dir), ...serversOf(dir)])
    await untilStopped(dir)
    expect(existsSync(join(dir, 'data', 'postmaster.pid'))).toBe(true)
    expect(await count(await Opener.open({ dir }))).toBe(1)
    expect(readFileSync(join(dir, 'postgres.log'), 'utf8')).toContain('was not properly shut down')
  })

  it('of all but the server: the next open adopts it and ends it', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    await write(opener)
    const server = one(serversOf(dir))
    kill(keepersOf(dir))
    await opener.kill()
    await until(() => keepersOf(dir).length === 0, 'the keepers to end')
    const next = await Opener.open({ dir })
    expect(one(serversOf(dir))).toBe(server)
    expect(await count(next)).toBe(1)
    await next.close()
    await until(() => serversOf(dir).length === 0, 'the server to end', 15_000)
  })

  it('of the keeper while it makes the data folder: the next open makes it whole', async () => {
    const dir = newFolder()
    const first = Opener.spawn({ dir })
    await until(() => processesOf(dir).some(({ command }) => command.includes('initdb')), 'initdb to run')
    await first.kill()
    kill(keepersOf(dir))
    expect(existsSync(join(dir, 'data'))).toBe(false)
    const next = await Opener.open({ dir })
    await write(next)
    await next.close()
    await untilStopped(dir)
    await until(
      () => !processesOf(dir).some(({ command }) => command.includes('initdb')),
      'the orphan to end',
    )
    await Opener.open({ dir })
    expect(readdirSync(dir).filter((name) => name.startsWith('data.new'))).toEqual([])
  })
})

describe('what lies in the way', patient, () => {
  it('a postmaster.pid whose number went to another process', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    await write(first)
    await first.close()
    await untilStopped(dir)
    const stale = ['', join(dir, 'data'), '1', '5432', '', '127.0.0.1', '1 1', 'ready'].join('\n')
    writeFileSync(join(dir, 'data', 'postmaster.pid'), `${process.pid}${stale}\n`)
    expect(await count(await Opener.open({ dir }))).toBe(1)
  })

  it('the socket of a keeper that is dead', async () => {
    const dir = newFolder()
    const address = keeperAddress(dir)
    const dead = createServer().listen(`${address}.dead`)
    await once(dead, 'listening')
    linkSync(`${address}.dead`, address)
    dead.close()
    await Opener.open({ dir })
  })

  it('a keeper of another folder at our address is not taken for ours', async () => {
    const dir = newFolder()
    const greeting = { type: 'greeting', protocol: 1, folder: '/somewhere/else', pid: 1 }
    const stranger = createServer((socket) => socket.write(`${JSON.stringify(greeting)}\n`))
    await once(stranger.listen(keeperAddress(dir)), 'listening')
    try {
      const { message } = await Opener.spawn({ dir }).failure()
      expect(message).toContain('says that it keeps /somewhere/else')
      expect(serversOf(dir)).toEqual([])
    } finally {
      stranger.close()
    }
  })

  it('a cleaner of temporary files: the keeper puts its socket back', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    rmSync(keeperAddress(dir))
    await until(() => existsSync(keeperAddress(dir)), 'the socket to be back')
    const second = await Opener.open({ dir })
    expect(second.url).toBe(first.url)
    one(keepersOf(dir))
  })

  it('another TMPDIR: the folder leads to its keeper', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    const second = await Opener.open({ dir }, { env: { TMPDIR: newFolder() } })
    expect(second.url).toBe(first.url)
    await first.close()
    await write(second)
    one(keepersOf(dir))
  })

  it('a keeper that cannot be reached is named, and its server left alone', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    const record = join(dir, 'server.json')
    const { keeper } = JSON.parse(readFileSync(record, 'utf8'))
    rmSync(record)
    const failure = await Opener.spawn({ dir }, { env: { TMPDIR: newFolder() } }).failure()
    expect(failure).toMatchObject({
      reason: 'already-running',
      message: expect.stringContaining(`kept by process ${keeper.pid}, which cannot be reached`),
    })
    await write(first)
  })

  it('a keeper that hangs is told, not waited for', async () => {
    const dir = newFolder()
    await Opener.open({ dir })
    const keeper = one(keepersOf(dir))
    process.kill(keeper, 'SIGSTOP')
    const { message } = await Opener.spawn({ dir }).failure()
    process.kill(keeper, 'SIGCONT')
    expect(message).toContain('does not answer')
  })

  it('a folder that was removed under a server: the next open begins anew', async () => {
    const dir = join(newFolder(), 'db')
    const first = await Opener.open({ dir })
    await write(first)
    const server = one(serversOf(dir))
    await first.close()
    rmSync(dir, { recursive: true })
    const next = await Opener.open({ dir })
    await expect(count(next)).rejects.toThrow('does not exist')
    await until(() => !serversOf(dir).includes(server), 'the old server to end')
  })

  it('a keeper asked to end stops its server cleanly, and those who need it bring it back', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    await write(opener)
    const server = one(serversOf(dir))
    kill(keepersOf(dir), 'SIGTERM')
    await until(() => !serversOf(dir).includes(server), 'the server to end')
    expect(await opener.queryUntilAnswered('select count(*) as n from kept')).toEqual([{ n: '1' }])
    expect(readFileSync(join(dir, 'postgres.log'), 'utf8')).not.toContain('was not properly shut down')
  })
})

describe('a temporary server', patient, () => {
  const folderOf = async (by: Opener): Promise<string> => {
    const [row] = await by.query("select current_setting('data_directory') as data")
    return dirname(String(row?.data))
  }

  it('is gone with its folder when close() returns', async () => {
    const opener = await Opener.open({ temporary: true, settings: fastSettings })
    const folder = await folderOf(opener)
    expect(await opener.query('show fsync')).toEqual([{ fsync: 'off' }])
    await opener.close()
    expect(existsSync(folder)).toBe(false)
    expect(serversOf(folder)).toEqual([])
    await untilStopped(folder)
  })

  it('is gone also when its process was killed', async () => {
    const opener = await Opener.open({ temporary: true })
    const folder = await folderOf(opener)
    await opener.kill()
    await untilStopped(folder)
    await until(() => !existsSync(folder), 'the folder to be gone')
  })

  it('whose process and keeper were both killed is ended by the next', async () => {
    const spawning = { env: { TMPDIR: newFolder() } }
    const abandoned = await Opener.open({ temporary: true }, spawning)
    const folder = await folderOf(abandoned)
    kill(keepersOf(folder))
    await abandoned.kill()
    one(serversOf(folder))
    const next = await Opener.open({ temporary: true }, spawning)
    await until(() => serversOf(folder).length === 0 && !existsSync(folder), 'the next to sweep', 15_000)
    expect(serversOf(await folderOf(next))).toHaveLength(1)
  })
})
