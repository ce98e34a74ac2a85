import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { count, newFolder, Opener, one, untilStopped, write } from '../../../test/embedded.js'
import { serversOf, supervisorsOf } from '../../../test/processes.js'
import { until } from '../../../test/until.js'
import { freePort } from './free-port.js'

// Real processes, real kills, on durable settings: what was committed must be there afterwards.
describe('one server for all who name a folder', () => {
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
    await until(() => supervisorsOf(dir).length === 1, 'the supervisors that came late to end')
    await write(openers[0] as Opener)
    expect(await Promise.all(openers.map(count))).toEqual(Array(10).fill(1))
    await Promise.all(openers.map((opener) => opener.close()))
    await untilStopped(dir)
  })

  it('stays for two seconds after the last, then keeps port and data for the next', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    await write(first)
    const { url } = first
    let last = first
    /** Whether the next one came in time, which a busy machine may keep it from. */
    const isInTime = async (): Promise<boolean> => {
      const server = one(serversOf(dir))
      const next = await Opener.prepare({ dir })
      const closedAt = performance.now()
      await last.close()
      last = next
      await next.openNow()
      if (performance.now() - closedAt > 2_000) return false
      expect(one(serversOf(dir))).toBe(server)
      return true
    }
    await until(isInTime, 'the next one to come within two seconds', 40_000)
    await last.close()
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

  it('leaves alone what else is in its folder, and drafts of dead supervisors not', async () => {
    const dir = newFolder()
    const nobody = 4_194_304 // no process has this number
    writeFileSync(join(dir, '.gitignore'), 'dist\n')
    for (const name of ['notes', 'server.json']) writeFileSync(join(dir, `${name}.${nobody}`), '')
    await Opener.open({ dir })
    expect(readFileSync(join(dir, '.gitignore'), 'utf8')).toBe('dist\n')
    expect(existsSync(join(dir, `notes.${nobody}`))).toBe(true)
    expect(existsSync(join(dir, `server.json.${nobody}`))).toBe(false)
  })

  it('is another for another folder', async () => {
    const [here, there] = [newFolder(), newFolder()]
    const openers = await Promise.all([here, there].map((dir) => Opener.open({ dir })))
    expect(openers[0]?.url).not.toBe(openers[1]?.url)
    expect([...serversOf(here), ...serversOf(there)]).toHaveLength(2)
  })
})
