import { describe, expect, it } from 'vitest'
import { checkArrows, findCircles, importsOf } from './imports.mjs'

const graph = (files: Record<string, string[]>) => new Map(Object.entries(files))

it('finds imports of all forms, types too, and not those in comments', () => {
  const text = `import a from './a.js'
import type { B } from '../b.js'
import {
  c,
  d,
} from './c.js'
export * from './e.js'
import './f.js'
import pg from 'pg'
// import x from './not.js'
import { h /* it's here */, i } from './h.js'
import { own } from 'dibs'
const g = await import('./g.js')
`
  expect(importsOf(text).toSorted()).toEqual([
    '../b.js',
    './a.js',
    './c.js',
    './e.js',
    './f.js',
    './g.js',
    './h.js',
    'dibs',
  ])
})

describe('arrows', () => {
  it('may go down, and stay in a folder', () => {
    expect(
      checkArrows(graph({ 'jobs/a.ts': ['claims/b.ts', 'postgres/c.ts', 'errors.ts', 'jobs/d.ts'] })),
    ).toEqual([])
    expect(checkArrows(graph({ 'index.ts': ['dibs.ts', 'errors.ts'] }))).toEqual([])
  })

  it.each([
    ['postgres/a.ts', 'jobs/b.ts'],
    ['postgres/a.ts', 'dibs.ts'],
    ['errors.ts', 'postgres/a.ts'],
    ['locks/a.ts', 'tables/b.ts'],
    ['testing/a.ts', 'jobs/b.ts'],
    ['dibs.ts', 'server/a.ts'],
    ['claims/a.ts', 'jobs/b.ts'],
    ['unheard-of/a.ts', 'errors.ts'],
  ])('%s must not import %s', (from, to) => {
    expect(checkArrows(graph({ [from]: [to] })).length).toBeGreaterThan(0)
  })
})

it('finds circles', () => {
  expect(findCircles(graph({ a: ['b', 'c'], b: ['c'], c: [] }))).toEqual([])
  expect(findCircles(graph({ a: ['b'], b: ['c'], c: ['b'] }))).toEqual(['circle: b → c → b'])
  expect(findCircles(graph({ a: ['a'] }))).toEqual(['circle: a → a'])
})
