import { spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  existsSync,
  linkSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { count, kill, newFolder, Opener, one, untilStopped, write } from '../../../test/embedded.js'
import { serversOf, supervisorsOf } from '../../../test/processes.js'
import { until } from '../../../test/until.js'
import { unprivilegedUser } from './server-user.js'
import { supervisorAddress } from './supervisor-address.js'

// Real processes, real kills, on durable settings: what was committed must be there afterwards.
describe('what lies in the way', () => {
  it('a postmaster.pid whose number went to another process', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    await write(first)
    await first.close()
    await untilStopped(dir)
    // The server's user must be allowed to signal this process: otherwise PostgreSQL knows that it is not a postmaster.
    const { uid, gid } = (process.getuid?.() === 0 && unprivilegedUser()) || {}
    const other = spawn('sleep', ['60'], { uid, gid })
    onTestFinished(() => void other.kill())
    const stale = ['', join(dir, 'data'), '1', '5432', '', '127.0.0.1', '1 1', 'ready'].join('\n')
    const file = join(dir, 'data', 'postmaster.pid')
    writeFileSync(file, `${other.pid}${stale}\n`)
    const second = await Opener.open({ dir })
    expect(await count(second)).toBe(1)
    await second.close()
    await untilStopped(dir)

    // Or one that was cut off while it was written.
    writeFileSync(file, '')
    utimesSync(file, 1, 1)
    expect(await count(await Opener.open({ dir }))).toBe(1)
  })

  it('the socket of a supervisor that is dead', async () => {
    const dir = newFolder()
    const address = supervisorAddress(dir)
    const dead = createServer().listen(`${address}.dead`)
    await once(dead, 'listening')
    linkSync(`${address}.dead`, address)
    dead.close()
    await Opener.open({ dir })
  })

  it('a supervisor of another folder at our address is not taken for ours', async () => {
    const dir = newFolder()
    const greeting = { type: 'greeting', protocol: 1, folder: '/somewhere/else', pid: 1 }
    const stranger = createServer((socket) => socket.write(`${JSON.stringify(greeting)}\n`))
    await once(stranger.listen(supervisorAddress(dir)), 'listening')
    try {
      const { message } = await Opener.spawn({ dir }).failure()
      expect(message).toContain('says that it keeps /somewhere/else')
      expect(serversOf(dir)).toEqual([])
    } finally {
      stranger.close()
    }
  })

  it('a record that leads where others can listen is not followed', async () => {
    const dir = newFolder()
    const place = newFolder() // others may enter it
    const address = join(place, 'posing.sock')
    const greeting = { type: 'greeting', protocol: 1, folder: dir, pid: 1 }
    const posing = createServer((socket) => {
      socket.write(`${JSON.stringify(greeting)}\n{"type":"ready","url":"postgres://x@127.0.0.1:1/x"}\n`)
    })
    await once(posing.listen(address), 'listening')
    onTestFinished(() => void posing.close())
    writeFileSync(join(dir, 'server.json'), JSON.stringify({ port: 5432, supervisor: { pid: 1, address } }))
    const opener = await Opener.open({ dir })
    await write(opener)
    one(serversOf(dir))
  })

  it('a cleaner of temporary files: the supervisor puts its socket back', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    rmSync(supervisorAddress(dir))
    await until(() => existsSync(supervisorAddress(dir)), 'the socket to be back')
    const second = await Opener.open({ dir })
    expect(second.url).toBe(first.url)
    one(supervisorsOf(dir))
  })

  it('another TMPDIR: the folder leads to its supervisor', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    const second = await Opener.open({ dir }, { env: { TMPDIR: newFolder() } })
    expect(second.url).toBe(first.url)
    await first.close()
    await write(second)
    one(supervisorsOf(dir))
  })

  it('a supervisor that cannot be reached is named, and its server left alone', async () => {
    const dir = newFolder()
    const place = join(newFolder(), 'tmp')
    mkdirSync(place)
    const first = await Opener.open({ dir }, { env: { TMPDIR: place } })
    const supervisor = one(supervisorsOf(dir))
    renameSync(place, `${place}.hidden`)
    writeFileSync(place, '') // so that it cannot be made again
    const failure = await Opener.spawn({ dir }).failure()
    expect(failure).toMatchObject({
      reason: 'already-running',
      message: expect.stringContaining(`kept by process ${supervisor}, which cannot be reached`),
    })
    await write(first)
  })

  it('a supervisor that hangs is told, not waited for', async () => {
    const dir = newFolder()
    await Opener.open({ dir })
    const supervisor = one(supervisorsOf(dir))
    process.kill(supervisor, 'SIGSTOP')
    const { message } = await Opener.spawn({ dir }).failure()
    process.kill(supervisor, 'SIGCONT')
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

  it('a supervisor asked to end stops its server cleanly, and those who need it bring it back', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    await write(opener)
    const server = one(serversOf(dir))
    kill(supervisorsOf(dir), 'SIGTERM')
    await until(() => !serversOf(dir).includes(server), 'the server to end')
    expect(await opener.queryUntilAnswered('select count(*) as n from kept')).toEqual([{ n: '1' }])
    expect(readFileSync(join(dir, 'postgres.log'), 'utf8')).not.toContain('was not properly shut down')
  })
})
