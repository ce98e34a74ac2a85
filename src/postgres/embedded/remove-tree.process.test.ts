import fs, { existsSync, mkdirSync, renameSync, writeFileSync } from 'node:fs'
import { syncBuiltinESMExports } from 'node:module'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { newFolder } from '../../../test/embedded.js'
import { removeTree } from './remove-tree.js'

const { lstatSync } = fs

/** Runs after each `lstatSync` of the code under test. */
let afterLstat = (): void => {}

function replaceLstat(by: typeof lstatSync): void {
  Object.assign(fs, { lstatSync: by })
  syncBuiltinESMExports()
}

beforeAll(() => {
  const replacement = (...args: Parameters<typeof lstatSync>) => {
    const found = lstatSync(...args)
    afterLstat()
    return found
  }
  replaceLstat(Object.assign(replacement, lstatSync) as typeof lstatSync)
})
afterAll(() => replaceLstat(lstatSync))

it('as root, does not empty a folder that was put in the place of a file after the check', ({ skip }) => {
  skip(process.getuid?.() !== 0, 'runs only as root')
  const dir = newFolder()
  const path = join(dir, 'password.1')
  writeFileSync(path, '')
  const planted = join(dir, 'planted')
  mkdirSync(planted)
  writeFileSync(join(planted, 'kept'), '')
  afterLstat = () => {
    if (!existsSync(planted)) return
    renameSync(path, join(dir, 'moved'))
    renameSync(planted, path)
  }
  expect(() => removeTree(path)).toThrow()
  expect(existsSync(join(path, 'kept'))).toBe(true)
})
