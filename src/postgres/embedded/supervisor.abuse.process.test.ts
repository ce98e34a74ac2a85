import { existsSync, mkdirSync, renameSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { withPool } from '../../../test/database.js'
import { count, kill, newFolder, Opener, one, untilStopped, write } from '../../../test/embedded.js'
import { serversOf, supervisorsOf } from '../../../test/processes.js'
import { until } from '../../../test/until.js'

// Things that users and their tools do to a running server: it goes on or says why not, and leaves nothing behind.
/** Longer than a successor waits before it counts. */
const GRACE_MS = 20_000

const terminateAll = 'select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid()'

describe('the server', () => {
  it('whose sessions are all ended, again and again, stays and keeps its data', async () => {
    const opener = await Opener.open({ temporary: true })
    await write(opener)
    // Only now: a slow machine may need longer than this between two statements of `open`.
    await opener.query("alter system set idle_session_timeout = '200ms'")
    await opener.query('select pg_reload_conf()')
    for (let n = 0; n < 8; n++) await opener.queryUntilAnswered(terminateAll)
    const owner = "select pid from pg_locks where locktype = 'advisory'"
    const isOwned = async () => (await opener.queryUntilAnswered(owner)).length > 0
    await until(isOwned, 'the supervisor to own it')
    const [before] = await opener.queryUntilAnswered(owner)
    await opener.queryUntilAnswered('select pg_sleep(1)')
    expect(await opener.queryUntilAnswered(owner)).toEqual([before])
    expect(await opener.queryUntilAnswered('select count(*)::int as n from kept')).toEqual([{ n: 1 }])
  })

  it('told to wait for everyone to leave, which never happens, is started again', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    await write(opener)
    const server = one(serversOf(dir))
    kill([server], 'SIGTERM')
    await until(() => serversOf(dir).some((pid) => pid !== server), 'another server', 20_000)
    expect(await opener.queryUntilAnswered('select count(*)::int as n from kept')).toEqual([{ n: 1 }])
  })

  it('whose own database was dropped ends, and the next open says so', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    await opener.query('create database elsewhere')
    const url = new URL(opener.url)
    url.pathname = '/elsewhere'
    await withPool((pool) => pool.query('drop database postgres with (force)'), {
      connectionString: url.href,
    })
    await until(() => serversOf(dir).length === 0, 'the server to end')
    await opener.kill()
    await untilStopped(dir)
    expect((await Opener.spawn({ dir }).failure()).message).toContain('database "postgres" does not exist')
    await untilStopped(dir)
  })
})

describe('the folder', () => {
  it('that was moved while in use: supervisor and server end as ever', async () => {
    const base = newFolder()
    const opener = await Opener.open({ dir: join(base, 'before') })
    await write(opener)
    renameSync(join(base, 'before'), join(base, 'after'))
    await write(opener)
    await opener.close()
    await untilStopped(base)
    expect(await count(await Opener.open({ dir: join(base, 'after') }))).toBe(2)
  })

  it('whose data is on another disk: a successor takes the server over, and it ends as ever', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    await write(first)
    await first.close()
    await untilStopped(dir)
    const elsewhere = newFolder()
    renameSync(join(dir, 'data'), join(elsewhere, 'data'))
    symlinkSync(join(elsewhere, 'data'), join(dir, 'data'))
    const opener = await Opener.open({ dir })
    const server = one(serversOf(dir))
    kill(supervisorsOf(dir))
    await until(() => supervisorsOf(dir).length === 1, 'a successor')
    expect(await count(await Opener.open({ dir }))).toBe(1)
    expect(one(serversOf(dir))).toBe(server)
    expect(existsSync(join(dir, 'data', 'postmaster.pid'))).toBe(true)
    await opener.close()
  })

  it.each([
    ['{}'],
    ['[]'],
    ['null'],
    ['{"port":5,"supervisor":{"pid":1,"address":"/x"}}'],
    ['{"port":70000,"settings":5,"supervisor":{"pid":1,"address":5}}'],
  ])('whose record is %s', async (text) => {
    const dir = newFolder()
    writeFileSync(join(dir, 'server.json'), text)
    await write(await Opener.open({ dir }))
  })

  it('whose record cannot be written: it is found all the same, and taken over', async () => {
    const dir = newFolder()
    mkdirSync(join(dir, 'server.json'))
    const opener = await Opener.open({ dir })
    await write(opener)
    kill(supervisorsOf(dir))
    await until(() => supervisorsOf(dir).length === 1, 'a successor')
    expect(await count(await Opener.open({ dir }))).toBe(1)
    one(serversOf(dir))
  })

  it('whose password is empty is refused at once, and nothing is left running', async () => {
    const dir = newFolder()
    await (await Opener.open({ dir })).close()
    await untilStopped(dir)
    writeFileSync(join(dir, 'password'), '')
    const startedAt = Date.now()
    expect((await Opener.spawn({ dir }).failure()).message).toContain('is missing or empty')
    expect(Date.now() - startedAt).toBeLessThan(10_000)
    await untilStopped(dir)
  })

  it('opened at once by processes with folders for temporary files of their own: one server, all served', async () => {
    const dir = newFolder()
    const openers = [1, 2, 3, 4].map(() => Opener.spawn({ dir }, { env: { TMPDIR: newFolder() } }))
    const opened = await Promise.all(openers.map((opener) => opener.opened()))
    expect(new Set(opened.map(({ url }) => url)).size).toBe(1)
    await until(() => supervisorsOf(dir).length === 1, 'the supervisors that came late to end')
    one(serversOf(dir))
  })
})

describe('the process', () => {
  it.each([false, true])(
    'that closes just after its supervisor was killed leaves no server (temporary: %s)',
    async (temporary) => {
      const dir = newFolder()
      const opener = await Opener.open(temporary ? { temporary } : { dir }, { env: { TMPDIR: dir } })
      kill(supervisorsOf(dir))
      await opener.close()
      await until(
        () => serversOf(dir).length === 0 && supervisorsOf(dir).length === 0,
        'all to end',
        GRACE_MS,
      )
    },
  )

  it('ends by itself, without close, also when its supervisor is lost and cannot be had again', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    const ended = opener.idle() // nothing of ours keeps it
    rmSync(dir, { recursive: true })
    writeFileSync(dir, '')
    kill([...supervisorsOf(dir), ...serversOf(dir)], 'SIGKILL')
    expect(await ended).toBe(0)
  })

  it('survives the fault of a supervisor whose log is gone', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    const server = one(serversOf(dir))
    rmSync(dir, { recursive: true })
    const supervisor = one(supervisorsOf(dir))
    kill([supervisor], 'SIGSEGV')
    await until(() => !supervisorsOf(dir).includes(supervisor), 'the supervisor to end')
    // The server may answer or not, without its files. The process must.
    for (let n = 0; n < 3; n++) {
      const answer = await opener.query('select 1').then(String, (error) => error.message)
      expect(answer).not.toContain('The process ended')
    }
    process.kill(server, 'SIGKILL')
  })

  it('whose own folder was removed can have a temporary server', async () => {
    const cwd = join(newFolder(), 'gone')
    mkdirSync(cwd)
    const opener = await Opener.open({ temporary: true }, { cwd, env: { DIBS_TEST_REMOVE_CWD: '1' } })
    await opener.close()
  })
})
