import { existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, it, vi } from 'vitest'
import { newFolder } from '../../../test/embedded.js'
import { removeTree } from './remove-tree.js'

const hooks = vi.hoisted(() => ({ afterLstat: () => {} }))

vi.mock('node:fs', async (importOriginal) => {
  const fs = await importOriginal<typeof import('node:fs')>()
  return {
    ...fs,
    lstatSync: (path: string, options: { throwIfNoEntry: false }) => {
      const found = fs.lstatSync(path, options)
      hooks.afterLstat()
      return found
    },
  }
})

it('as root, does not empty a folder that was put in the place of a file after the check', ({ skip }) => {
  skip(process.getuid?.() !== 0, 'runs only as root')
  const dir = newFolder()
  const path = join(dir, 'password.1')
  writeFileSync(path, '')
  const planted = join(dir, 'planted')
  mkdirSync(planted)
  writeFileSync(join(planted, 'kept'), '')
  hooks.afterLstat = () => {
    if (!existsSync(planted)) return
    renameSync(path, join(dir, 'moved'))
    renameSync(planted, path)
  }
  expect(() => removeTree(path)).toThrow()
  expect(existsSync(join(path, 'kept'))).toBe(true)
})
