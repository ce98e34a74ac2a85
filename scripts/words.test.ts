import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { findLongSubjects, MAX_SUBJECT, readCommits } from './commits.mjs'
import { findRetired, wordsOf } from './words.mjs'

const author = {
  GIT_AUTHOR_NAME: 'a',
  GIT_AUTHOR_EMAIL: 'a@example.org',
  GIT_COMMITTER_NAME: 'a',
  GIT_COMMITTER_EMAIL: 'a@example.org',
}

const namesIn = (file: string, source: string) => findRetired(file, source).map(({ name }) => name)

it('splits a name into words', () => {
  expect(wordsOf('readHTTPKeeper_at2')).toEqual(['read', 'http', 'keeper', 'at2'])
  expect(wordsOf('JOB_LINE')).toEqual(['job', 'line'])
})

describe('finds a retired word in the name of', () => {
  it.each([
    ['a class', 'class LockKeeper {}', 'LockKeeper'],
    ['a type', 'export type Told = 1', 'Told'],
    ['an interface and its fields', 'interface A { readonly jobBell: 1 }', 'jobBell'],
    ['a private field', 'class A { #stray = 1 }', 'stray'],
    ['a method', 'class A { doomIt() {} }', 'doomIt'],
    ['a function', 'function takeLook() {}', 'takeLook'],
    [
      'a field that a constructor declares',
      'class A { constructor(private readonly keeper: 1) {} }',
      'keeper',
    ],
    ['a parameter with a default', 'function f(ghost = 1) {}', 'ghost'],
    ['a rest parameter', 'function f(...strays: 1[]) {}', 'strays'],
    ['an item of a list', 'function f() { const [bell] = z }', 'bell'],
    ['a function in a function', 'function f() { const look = () => 1 }', 'look'],
    ['a constant of a module', 'const FIRST_LOOK_MS = 1', 'FIRST_LOOK_MS'],
    ['a parameter', 'function f(surely: boolean) {}', 'surely'],
    ['a variable', 'function f() { const { a: ghost } = b }', 'ghost'],
  ])('%s', (_, source, name) => {
    expect(namesIn('src/a.ts', source)).toEqual([name])
  })

  it('a file', () => {
    expect(namesIn('src/jobs/lease-keeper.test.ts', '')).toEqual(['lease-keeper'])
  })

  it('a function, a column, a parameter and a variable of SQL', () => {
    const sql = `-- told
create function {schema}.job_told(p_stray text) returns text as $$
declare
  v_doom text;
$$;
create table {schema}.a (
  look bigint
);`
    expect(namesIn('sql/0001_a.sql', sql).toSorted()).toEqual(['doom', 'job_told', 'look', 'stray'])
  })
})

it('says where, and what to write instead', () => {
  expect(findRetired('src/a.ts', '\nclass Desk {}')).toEqual([
    {
      file: 'src/a.ts',
      name: 'Desk',
      problem: expect.stringMatching(/^src\/a\.ts:2: `Desk` .* Write: manager/),
    },
  ])
})

describe('leaves alone', () => {
  it.each([
    ['strings and comments', "// told\nconst state = 'told'"],
    ['names of others', 'call(told); const { told } = row; x.told = 1'],
    ['the common meaning of a local name', 'function f(given: string) { const look = 1 }'],
    ['phrases', 'class A { isGivenUp = true; lookUp() {} looksLikeOne() {} }'],
  ])('%s', (_, source) => {
    expect(namesIn('src/a.ts', source)).toEqual([])
  })
})

describe('subjects of commits', () => {
  it('are refused above their length', () => {
    const fits = `1234567 ${'a'.repeat(MAX_SUBJECT)}`
    expect(findLongSubjects(`${fits}\n${fits}a`)).toEqual([
      expect.stringContaining(`${fits}a: the subject is longer`),
    ])
  })

  it('are those of the history since a date', () => {
    const folder = mkdtempSync(join(tmpdir(), 'dibs-commits-'))
    onTestFinished(() => rmSync(folder, { recursive: true }))
    execFileSync('git', ['init', '-q'], { cwd: folder })
    const commit = (subject: string, date: string) => {
      const dates = { GIT_AUTHOR_DATE: date, GIT_COMMITTER_DATE: date }
      const env = { ...process.env, ...author, ...dates }
      execFileSync('git', ['commit', '-q', '--allow-empty', '-m', subject], { cwd: folder, env })
    }
    commit('a'.repeat(MAX_SUBJECT + 1), '2026-01-01T00:00:00Z')
    commit('b'.repeat(MAX_SUBJECT + 1), '2027-01-01T00:00:00Z')
    expect(findLongSubjects(readCommits(folder))).toEqual([expect.stringContaining('bbb')])
  })

  it('are not known without history', () => {
    expect(readCommits('/')).toBe('')
    expect(findLongSubjects('')).toEqual([])
  })
})
