import { expect, it } from 'vitest'
import { findRaces, RACES } from './promise-races.mjs'

it.each([
  ['a call', 'await Promise.race([answer, ended])'],
  ['a call over two lines', 'await Promise\n  .any([answer, ended])'],
  ['a method that is passed on', 'lists.map(Promise.race, Promise)'],
  ['a name in brackets', "await Promise['race']([answer, ended])"],
  ['destructuring', 'const { all, race } = Promise'],
])('refuses %s', (_, code) => {
  expect(findRaces('src/jobs/running-worker.ts', code)).toEqual([
    expect.stringMatching(/^src\/jobs\/running-worker\.ts:1 uses Promise\.(?:race|any), .* Use withTimeout/),
  ])
})

it('says in which line', () => {
  const code = '/**\n * Promise.race\n */\nconst one = 1\nawait Promise.race([])\n'
  expect(findRaces('src/a.ts', code)).toEqual([expect.stringContaining('src/a.ts:5 ')])
})

it.each([
  ['other methods', 'await Promise.all([]); await Promise.allSettled([])'],
  ['other objects', 'await races.race(1); tracks.any()'],
  ['block comments', '/** `Promise.race` keeps them. */'],
  ['line comments', '// Promise.race keeps them.\nlet a = 1 // not Promise.any'],
])('allows %s', (_, code) => {
  expect(findRaces('src/a.ts', code)).toEqual([])
})

it('allows them in the one file', () => {
  expect(findRaces(RACES, 'return Promise.any(promises)')).toEqual([])
})
