import { fork } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, onTestFinished } from 'vitest'
import { directUrl, freshName } from '../../../test/database.js'
import { newFolder, untilStopped } from '../../../test/embedded.js'
import type { OpenOptions } from '../open-options.js'

const program = join(import.meta.dirname, '../../../test/children/fail-to-open.mjs')

/** Fails to open in a process of its own. Resolves when that process has ended by itself, which an open handle would prevent. */
async function failToOpen(
  options: OpenOptions,
  variables: NodeJS.ProcessEnv = {},
): Promise<{ name: string; code: number | null }> {
  const { DATABASE_URL: _, ...inherited } = process.env
  const child = fork(program, [JSON.stringify(options)], {
    env: { ...inherited, ...variables },
    execArgv: [],
  })
  onTestFinished(() => {
    child.kill('SIGKILL')
  })
  const exited = once(child, 'exit')
  const [{ name }] = await once(child, 'message')
  const [code] = await exited
  return { name, code }
}

it('a server that was started is let go when the schema is refused', async () => {
  const dir = newFolder()
  expect(await failToOpen({ embedded: { dir }, migrate: 'check' })).toEqual({
    name: 'SchemaVersionError',
    code: 0,
  })
  await untilStopped(dir)
})

it('a temporary server leaves nothing behind when the schema is refused', async () => {
  const TMPDIR = newFolder()
  expect(await failToOpen({ embedded: { temporary: true }, migrate: 'check' }, { TMPDIR })).toEqual({
    name: 'SchemaVersionError',
    code: 0,
  })
  expect(readdirSync(TMPDIR).filter((name) => name.startsWith('dibs-temporary-'))).toEqual([])
})

it.each<[string, string, () => OpenOptions]>([
  [
    'the programs are missing',
    'EmbeddedServerError',
    () => ({ embedded: { dir: newFolder(), binaries: '/nowhere' } }),
  ],
  ['nobody listens', 'ConnectionLostError', () => ({ url: 'postgres://127.0.0.1:1/x' })],
  ['there is no such database', 'SetupError', () => ({ url: directUrl.replace(/\/[^/]*$/, '/nowhere') })],
  [
    'the schema is refused',
    'SchemaVersionError',
    () => ({ url: directUrl, schema: freshName(), migrate: 'check' }),
  ],
])('no handle stays open when %s', async (_, name, options) => {
  expect(await failToOpen(options())).toEqual({ name, code: 0 })
})
