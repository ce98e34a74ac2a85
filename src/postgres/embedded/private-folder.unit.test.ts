import { chmodSync, mkdirSync, mkdtempSync, rmSync, statSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it, vi } from 'vitest'
import { EmbeddedServerError } from '../../errors.js'
import { privateFolder } from './private-folder.js'
import { supervisorAddress } from './supervisor-address.js'

const own = `dibs-${process.getuid?.()}`
let place: string

beforeEach(() => {
  place = mkdtempSync(join(tmpdir(), 'private-'))
  vi.stubEnv('TMPDIR', place)
})
afterEach(() => {
  vi.unstubAllEnvs()
  rmSync(place, { recursive: true })
})

it('is made for its owner alone', () => {
  expect(privateFolder('/x')).toBe(join(place, own))
  expect(statSync(join(place, own)).mode & 0o777).toBe(0o700)
})

it('is refused when others may enter it', () => {
  mkdirSync(join(place, own))
  chmodSync(join(place, own), 0o755)
  expect(() => privateFolder('/x')).toThrow(EmbeddedServerError)
})

it('is refused when it leads elsewhere', () => {
  mkdirSync(join(place, 'elsewhere'), { mode: 0o700 })
  symlinkSync(join(place, 'elsewhere'), join(place, own))
  expect(() => privateFolder('/x')).toThrow('could pose as your database')
})

// Node cuts an address off at 107 bytes without a word, and folders would share one.
it('is elsewhere when its path is too long for a socket', () => {
  vi.stubEnv('TMPDIR', join(place, 'x'.repeat(100)))
  const addresses = ['/one', '/two'].map(supervisorAddress)
  expect(new Set(addresses.map((address) => address.slice(0, 103))).size).toBe(2)
  for (const address of addresses) expect(address).toMatch(/^\/tmp\/dibs-\d+\/[0-9a-f]{16}\.sock$/)
})
