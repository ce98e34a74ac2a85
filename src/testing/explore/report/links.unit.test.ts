import { describe, expect, it } from 'vitest'
import { failed, madeStep, rows, waitsFor } from '../../../../test/made-race.js'
import { findLinks } from './links.js'
import { findPauses } from './pauses.js'

const done = rows('UPDATE 1')
const plain = (unit: string) => madeStep(unit, 'update', done)
const waiting = (unit: string, ...others: string[]) => madeStep(unit, 'update', waitsFor(...others))
const freeing = (unit: string, other: string, effect = done) =>
  madeStep(unit, 'commit', rows('COMMIT'), { resumed: [{ unit: other, effect }] })

describe('links of a trace', () => {
  it('lead from the last step of the holder to the step that waits, and from the step that frees it', () => {
    const steps = [
      plain('alice'),
      plain('alice'),
      plain('bob'),
      waiting('bob', 'alice'),
      freeing('alice', 'bob'),
    ]
    expect(findLinks(steps)).toEqual([
      { kind: 'blocks', from: 1, to: 3, what: 'row lock, stock' },
      { kind: 'frees', from: 4, to: 3 },
    ])
  })

  it('name every holder, and leave out holders without a step', () => {
    const steps = [plain('alice'), plain('bob'), waiting('carol', 'alice', 'bob', 'dave', 'process 77')]
    expect(findLinks(steps).map(({ kind, from, to }) => [kind, from, to])).toEqual([
      ['blocks', 0, 2],
      ['blocks', 1, 2],
    ])
  })

  it('show that a unit now waits for another, and that a step frees only the units that go on', () => {
    const steps = [
      plain('alice'),
      waiting('bob', 'alice'),
      waiting('carol', 'alice'),
      madeStep('alice', 'commit', rows('COMMIT'), {
        resumed: [
          { unit: 'bob', effect: done },
          { unit: 'carol', effect: waitsFor('bob') },
        ],
      }),
      freeing('bob', 'carol'),
    ]
    expect(findLinks(steps).map(({ kind, from, to }) => [kind, from, to])).toEqual([
      ['blocks', 0, 1],
      ['blocks', 0, 2],
      ['frees', 3, 1],
      ['blocks', 1, 2],
      ['frees', 4, 2],
    ])
  })

  it('stand once for repeated waits for the same lock', () => {
    const again = { unit: 'bob', effect: waitsFor('alice') }
    const steps = [
      plain('alice'),
      waiting('bob', 'alice'),
      madeStep('carol', 'x', done, { resumed: [again] }),
    ]
    expect(findLinks(steps)).toHaveLength(1)
  })

  it('distinguish the connections of one actor', () => {
    const steps = [plain('alice'), plain('alice/2'), waiting('bob', 'alice/2')]
    expect(findLinks(steps)).toMatchObject([{ from: 1, to: 2 }])
  })

  it('hold for the victim of a deadlock, whose error lets the other go on', () => {
    const victim = madeStep('alice', 'update', failed('40P01', 'deadlock detected'), {
      resumed: [{ unit: 'bob', effect: done }],
    })
    expect(findLinks([plain('alice'), waiting('bob', 'alice'), victim])).toMatchObject([
      { kind: 'blocks', from: 0, to: 1 },
      { kind: 'frees', from: 2, to: 1 },
    ])
  })
})

describe('pauses', () => {
  it('last from the wait to the step that ends it, also if the unit then waits for another', () => {
    const steps = [
      plain('alice'),
      waiting('bob', 'alice'),
      madeStep('alice', 'commit', rows('COMMIT'), { resumed: [{ unit: 'bob', effect: waitsFor('carol') }] }),
      freeing('carol', 'bob'),
    ]
    expect(findPauses(steps)).toEqual([{ kind: 'waits', unit: 'bob', from: 1, to: 3 }])
  })

  it('end with the next step of their own unit, or never if there is none', () => {
    const steps = [plain('alice'), waiting('bob', 'alice'), plain('bob'), waiting('bob', 'alice')]
    expect(findPauses(steps)).toEqual([
      { kind: 'waits', unit: 'bob', from: 1, to: 2 },
      { kind: 'waits', unit: 'bob', from: 3, to: undefined },
    ])
  })

  it('distinguish a yield point from a wait', () => {
    const point = { kind: 'point', name: 'a is read' } as const
    const steps = [
      madeStep('alice', 'select total()', waitsFor('bob')),
      freeing('bob', 'alice', point),
      madeStep('alice', '… goes on', done),
    ]
    expect(findPauses(steps)).toEqual([
      { kind: 'waits', unit: 'alice', from: 0, to: 1 },
      { kind: 'stands', unit: 'alice', from: 1, to: 2 },
    ])
  })
})
