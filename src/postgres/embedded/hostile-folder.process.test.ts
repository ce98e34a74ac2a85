import {
  chmodSync,
  chownSync,
  existsSync,
  lchownSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import { beforeEach, describe, expect, it, type TestContext } from 'vitest'
import { newFolder, Opener, untilStopped } from '../../../test/embedded.js'
import { readPassword } from './initialize.js'
import { removeTree } from './remove-tree.js'
import { prepareServerPaths } from './server-paths.js'
import { writeRecord } from './server-record.js'
import { unprivilegedUser } from './server-user.js'

const other = unprivilegedUser()
/** Only root can make files of another user. */
const needsRoot = ({ skip }: TestContext): void =>
  skip(process.getuid?.() !== 0 || !other, 'runs only as root, where user "postgres" or "nobody" exists')
const uid = Number(other?.uid)
const gid = Number(other?.gid)

/** Longer than a log may be before it is emptied. */
const LONG = 'kept\n'.repeat(300_000)

function newVictim(text = LONG): string {
  const file = join(newFolder(), 'victim')
  writeFileSync(file, text, { mode: 0o600 })
  return file
}

const failureOf = (dir: string) => Opener.spawn({ dir }).failure()

const record = { port: 1, supervisor: { pid: 1, address: '/x' } }

describe('links in the folder are not followed', () => {
  it.each(['supervisor.log', 'postgres.log'])('%s', async (name) => {
    for (const link of [symlinkSync, linkSync]) {
      const dir = newFolder()
      const victim = newVictim()
      link(victim, join(dir, name))
      expect(await failureOf(dir)).toMatchObject({
        reason: 'no-permission',
        message: expect.stringMatching(new RegExp(`${name} .*link.*Remove`)),
      })
      expect(readFileSync(victim, 'utf8')).toBe(LONG)
      await untilStopped(dir)
    }
  })

  it('a draft of server.json', () => {
    const dir = newFolder()
    const victim = newVictim()
    symlinkSync(victim, join(dir, `server.json.${process.pid}`))
    writeRecord(dir, record)
    expect(readFileSync(victim, 'utf8')).toBe(LONG)
    expect(JSON.parse(readFileSync(join(dir, 'server.json'), 'utf8'))).toEqual(record)
  })

  it('password', () => {
    const dir = newFolder()
    symlinkSync(newVictim('secret'), join(dir, 'password'))
    const home = { folder: dir, dir, data: join(dir, 'data'), log: join(dir, 'log'), user: undefined }
    expect(() => readPassword(home)).toThrow(/password is a symbolic link.*Remove/)
  })

  it('the note of where the data is', (context) => {
    needsRoot(context)
    const dir = newFolder()
    const victim = newVictim()
    symlinkSync(victim, join(dir, 'WHERE-THE-DATA-IS.txt'))
    chmodSync(dir, 0o700)
    const { dir: home } = prepareServerPaths(dir)
    try {
      expect(home).toMatch(/^\/var\/lib\/dibs\//)
      expect(readFileSync(victim, 'utf8')).toBe(LONG)
      expect(readFileSync(join(dir, 'WHERE-THE-DATA-IS.txt'), 'utf8')).toContain(home)
    } finally {
      rmSync(home, { recursive: true })
    }
  })
})

describe('root refuses a folder', () => {
  beforeEach(needsRoot)

  const expectRefused = async (dir: string, message: RegExp) => {
    const before = existsSync(dir) ? readdirSync(dir) : undefined
    const failure = await failureOf(dir)
    expect(failure).toMatchObject({ reason: 'no-permission', message: expect.stringMatching(message) })
    expect(failure.message).toContain(dir)
    expect(existsSync(dir) ? readdirSync(dir) : undefined).toEqual(before)
  }

  it('of another user, and touches nothing in it', async () => {
    const dir = newFolder()
    chownSync(dir, uid, gid)
    const victim = newVictim()
    symlinkSync(victim, join(dir, 'supervisor.log'))
    await expectRefused(dir, new RegExp(`belongs to .*\\(${uid}\\).* runs as root.*chown`, 's'))
    expect(readFileSync(victim, 'utf8')).toBe(LONG)
  })

  it('that is a link of another user', async () => {
    const base = newFolder()
    const target = join(base, 'target')
    mkdirSync(target)
    const dir = join(base, '.dibs')
    symlinkSync(target, dir)
    lchownSync(dir, uid, gid)
    await expectRefused(dir, /symbolic link that belongs to/)
  })

  it.each([
    ['anybody', 0o777, 0],
    ['a group', 0o775, gid],
  ])('that %s may write to', async (_, mode, group) => {
    const dir = newFolder()
    chownSync(dir, 0, group)
    chmodSync(dir, mode)
    await expectRefused(dir, /may write to.*chmod/s)
  })

  it('that another user has owned since the server was started', async () => {
    const dir = newFolder()
    const first = await Opener.open({ dir })
    await first.close()
    await untilStopped(dir)
    chownSync(dir, uid, gid)
    await expectRefused(dir, /belongs to/)
  })
})

it('root is told that a file is in the way, and not to change the rights of that file', async (context) => {
  needsRoot(context)
  expect(await failureOf('/dev/null')).toMatchObject({
    message: expect.stringMatching(/a file is in the way/),
  })
})

it('root accepts its own folder below one of another user', async (context) => {
  needsRoot(context)
  const base = newFolder()
  chownSync(base, uid, gid)
  const opener = await Opener.open({ dir: join(base, '.dibs') })
  expect(await opener.query('select 1 as one')).toEqual([{ one: 1 }])
  expect(statSync(join(base, '.dibs')).uid).toBe(0)
})

it('removes a tree of another user with the rights of that user', (context) => {
  needsRoot(context)
  const dir = newFolder()
  const tree = join(dir, 'data.new.1')
  const victim = newVictim()
  mkdirSync(join(tree, 'inner'), { recursive: true })
  writeFileSync(join(tree, 'inner', 'file'), '')
  symlinkSync(victim, join(tree, 'link'))
  for (const path of ['', 'inner', 'inner/file']) chownSync(join(tree, path), uid, gid)
  // As if another user had put a folder of root's there: that user's rights do not suffice to empty it.
  mkdirSync(join(tree, 'roots'))
  writeFileSync(join(tree, 'roots', 'file'), '')
  removeTree(tree)
  expect(readdirSync(tree)).toEqual(['roots'])
  expect(readFileSync(victim, 'utf8')).toBe(LONG)
  rmSync(join(tree, 'roots'), { recursive: true })
  removeTree(tree)
  expect(existsSync(tree)).toBe(false)
})
