import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { directUrl, freshName, withPool } from '../test/database.js'

// A database of its own: examples use the default schema and tables of their own in public.
const name = freshName('examples')

const at = (): string => {
  const target = new URL(directUrl)
  target.pathname = `/${name}`
  return target.href
}

beforeAll(() => withPool((pool) => pool.query(`create database ${name}`), { connectionString: directUrl }))
afterAll(() => withPool((pool) => pool.query(`drop database ${name}`), { connectionString: directUrl }))

/** Examples import the built package by its name, as a user would; `npm test` builds it first. */
const run = async (file: string): Promise<string> => {
  const { stdout } = await promisify(execFile)(process.execPath, [join(import.meta.dirname, file)], {
    env: { ...process.env, DATABASE_URL: at() },
  })
  return stdout
}

it('last-item.mjs prints what the README shows', async () => {
  const readme = readFileSync(join(import.meta.dirname, '../README.md'), 'utf8')
  const output = await run('last-item.mjs')
  expect(output).toContain('1 bought the last item, 9 were told')
  expect(readme).toContain(output.trim())
})
