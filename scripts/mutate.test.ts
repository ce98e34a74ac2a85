import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { findAllPlaces, findPlaces, mutate, withoutMarkers } from './mutate/markers.mjs'
import { checkMutations, findTests } from './mutate/read-mutations.mjs'
import { findBroken, judge, runMutations } from './mutate/run-mutations.mjs'

const CODE = `export function write(row, fence) {
  if (row.fence !== fence) throw new Error('lost') // guard: area.fence
  // guard: area.limit
  if (row.size > 10) {
    throw new Error('too long')
  }
  // guard: area.order {
  lock(row)
  row.at = now()
  // guard: area.order }
  return row
}
`

let root: string
beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), 'dibs-mutate-test-'))
  for (const folder of ['src', 'sql']) mkdirSync(join(root, folder))
  writeFileSync(join(root, 'src/write.ts'), CODE)
  writeFileSync(join(root, 'src/write.test.ts'), '')
})
afterEach(() => rmSync(root, { recursive: true }))

const entry = (guard: string, more: object = {}) => ({ guard, what: 'It breaks.', tests: ['write'], ...more })
const all = [
  entry('area.fence'),
  entry('area.limit', { if: false }),
  entry('area.order', { from: 'lock(row)', to: '' }),
]
const check = (mutations: object[]) => checkMutations(root, mutations as never, findAllPlaces(root))
const apply = (guard: string, more: object = {}) => {
  const place = findPlaces('src/write.ts', CODE).places.find((one) => one.guard === guard)
  if (!place) throw new Error(`${guard} is not marked`)
  return mutate(CODE, place, entry(guard, more))
}

test('every guard that is marked once and has one entry passes', () => {
  expect(check(all)).toEqual([])
})

test('a guard without a marker, and a marker without an entry', () => {
  expect(check([...all, entry('area.gone')])).toEqual(['"area.gone" has no marker in src/ or sql/'])
  expect(check(all.slice(1))).toEqual([
    'src/write.ts marks "area.fence", which has no entry in test/mutations',
  ])
})

test('a guard that is marked twice, and one with two entries', () => {
  writeFileSync(join(root, 'sql/0001_write.sql'), 'select 1 -- guard: area.fence\n')
  expect(check(all)).toEqual(['"area.fence" has 2 markers: sql/0001_write.sql:1, src/write.ts:2'])
  rmSync(join(root, 'sql/0001_write.sql'))
  expect(check([...all, entry('area.fence')])).toEqual(['"area.fence" has two entries in test/mutations'])
})

test('a mutation that changes nothing, and a test that does not exist', () => {
  const fence = entry('area.fence', { from: 'version', to: '', tests: ['write', 'read'] })
  expect(check([fence, ...all.slice(1)])).toEqual([
    '"area.fence" changes nothing at src/write.ts:2',
    '"area.fence" names a test that does not exist: read',
  ])
})

test('a mutation whose result does not parse', () => {
  const fence = entry('area.fence', { from: 'row.', to: '[]' })
  expect(check([fence, ...all.slice(1)])).toEqual([
    '"area.fence" leaves code that does not parse at src/write.ts:2',
  ])
})

test('a block without an end, and a marker that cannot be read', () => {
  expect(findPlaces('a.ts', '// guard: area.block {\na()\n').problems).toEqual([
    'a.ts: the block "area.block" has no end',
  ])
  expect(findPlaces('a.ts', 'a() // guard: Area\n').problems).toEqual([
    'a.ts:1 has a marker that cannot be read',
  ])
})

test('tests are found by name in any folder', () => {
  mkdirSync(join(root, 'src/deep'))
  writeFileSync(join(root, 'src/deep/write.test.ts'), '')
  expect(findTests(root, ['write']).sort()).toEqual(['src/deep/write.test.ts', 'src/write.test.ts'])
  expect(findTests(root, ['deep/write'])).toEqual(['src/deep/write.test.ts'])
})

test('the marked line is deleted, replaced, or changed in part', () => {
  expect(apply('area.fence')).toBe(CODE.replace(/ {2}if \(row.fence.*\n/, '\n'))
  expect(apply('area.fence', { to: '  return' })).toContain('{\n  return\n')
  expect(apply('area.fence', { from: /'\w+'/, to: "'gone'" })).toContain("new Error('gone')\n")
})

test('a condition is decided, with nested parentheses, and in SQL', () => {
  expect(apply('area.limit', { if: false })).toContain('  if (false) {\n')
  const decide = (code: string) =>
    mutate(
      code,
      { guard: 'a.b', file: '', first: 0, last: 0 },
      { guard: 'a.b', if: true, what: '', tests: [] },
    )
  expect(decide('if (f(a(1), b)) return // guard: a.b')).toBe('if (true) return')
  expect(decide('  elsif x = case when y then 1 else 2 end then -- guard: a.b')).toBe('  elsif true then')
  expect(decide("set state = case when n > 1 then 'dead' else 'ready' end")).toBe(
    "set state = case when true then 'dead' else 'ready' end",
  )
  expect(decide('  exit when n > 1;')).toBe('  exit when true;')
})

test('the last line of a block runs first, with a yield point behind it', () => {
  expect(apply('area.order', { lastFirst: true })).toContain(
    '  row.at = now()\n  -- point: out of order\n  lock(row)\n',
  )
})

test('no marker reaches the database', () => {
  expect(
    withoutMarkers('a;\n  -- guard: a.b {\n  b; -- guard: a.c, a.d\n  -- guard: a.b }\n-- point: x\n'),
  ).toBe('a;\n  b;\n-- point: x\n')
})

test('a survivor is reported, and the source is restored', () => {
  const { places } = findAllPlaces(root)
  const chosen = all.map((mutation) => ({
    mutation,
    place: places.find(({ guard }) => guard === mutation.guard) as (typeof places)[number],
  }))
  const lines: string[] = []
  const results = runMutations(root, chosen, {
    build: () => undefined,
    // Notices the missing fence, and nothing else.
    test: () =>
      readFileSync(join(root, 'src/write.ts'), 'utf8').includes('row.fence !== fence')
        ? { verdict: 'survived' }
        : { verdict: 'killed', by: 'refuses a late writer' },
    report: (...line: string[]) => lines.push(line.join(' | ')),
  })
  expect(results).toMatchObject({ killed: ['area.fence'], survived: ['area.limit', 'area.order'] })
  expect(lines).toEqual([
    'area.fence | killed | refuses a late writer',
    'area.limit | survived | It breaks.',
    'area.order | survived | It breaks.',
  ])
  expect(readFileSync(join(root, 'src/write.ts'), 'utf8')).toBe(CODE)
})

test('a replacement that does not compile is no proof', () => {
  expect(findBroken("src/a.ts(1,1): error TS2322: Type 'x' is not assignable to type 'y'.")).toBeUndefined()
  expect(findBroken("src/a.ts(1,1): error TS2304: Cannot find name 'x'.")).toContain('TS2304')
  const run = (failure: string) =>
    judge({
      status: 1,
      stdout: JSON.stringify({
        testResults: [
          {
            status: 'failed',
            assertionResults: [{ status: 'failed', fullName: 'it holds', failureMessages: [failure] }],
          },
        ],
      }),
    } as never)
  expect(run('syntax error at or near ")"').verdict).toBe('does not compile')
  expect(run('expected 1 to be 2')).toEqual({ verdict: 'killed', by: 'it holds' })
  expect(judge({ status: 0, stdout: '' } as never).verdict).toBe('survived')
})

test('a run without tests is no proof', () => {
  for (const stdout of ['{"testResults":[]}', 'No test files found', ''])
    expect(judge({ status: 1, stdout } as never).verdict).toBe('survived')
})
