import { describe, it } from 'vitest'
import {
  type Depth,
  giveBack,
  LONG_AGO,
  quotaScenes,
  refund,
  reserve,
  settle,
  take,
  WINDOW_MS,
} from './explored-quota.js'

/** Every race of a quota that is known, and that must not be one; some of three callers only where there is time for them. */
export function describeQuotaSchedules(depth: Depth, { hasTime = false } = {}): void {
  const atLeisure = it.skipIf(!hasTime)
  const { expectAtomic, joined, maintain, pass } = quotaScenes(depth)

  const none = { entries: [] }
  const used = (amount: number) => ({ entries: [{ amount }] })

  describe('a subject without a row', () => {
    it('is taken by one of two', () => expectAtomic({ start: none, calls: { ann: take(6), bob: take(5) } }))

    atLeisure('is taken by as many of three as fit', () =>
      expectAtomic({ start: none, calls: { ann: take(6), bob: take(5), eve: take(4) } }),
    )

    it('is taken once under one id', () =>
      expectAtomic({ start: none, calls: { ann: take(6, 'a'), bob: take(6, 'a') } }))

    atLeisure('is taken once under one id by three', () =>
      expectAtomic({
        start: none,
        calls: { ann: take(3, 'a'), bob: take(3, 'a'), eve: take(3, 'a') },
      }),
    )

    it('is taken or reserved', () =>
      expectAtomic({ start: none, calls: { ann: take(6), bob: reserve(6, 'h') } }))

    it('has no id that another subject has', () =>
      expectAtomic({ start: none, calls: { ann: take(6, 'a'), bob: take(6, 'a', 'bob') } }))
  })

  describe('a row', () => {
    it('at the edge of its limit', () =>
      expectAtomic({ start: used(8), calls: { ann: take(2), bob: take(1) } }))

    atLeisure('at the edge of its limit, for three', () =>
      expectAtomic({ start: used(7), calls: { ann: take(2), bob: take(1), eve: take(2, 'a') } }),
    )

    it('whose window is just over', () =>
      expectAtomic({
        start: { window: -WINDOW_MS, entries: [{ amount: 10 }] },
        calls: { ann: take(6), bob: take(5) },
      }))

    it('whose window is over in between', () =>
      expectAtomic({ start: used(8), calls: { ann: take(3), bob: take(2), time: pass(WINDOW_MS) } }))

    it('gives back once what was taken', () =>
      expectAtomic({
        start: { entries: [{ id: 'a', amount: 4 }, { amount: 5 }] },
        calls: { ann: refund('a'), bob: refund('a') },
      }))

    atLeisure('gives back once what was taken, to whoever takes', () =>
      expectAtomic({
        start: { entries: [{ id: 'a', amount: 4 }, { amount: 5 }] },
        calls: { ann: refund('a', 3), bob: refund('a'), eve: take(4) },
      }),
    )

    it('has nothing to give back to a window that is over', () =>
      expectAtomic({
        start: { window: -WINDOW_MS, entries: [{ id: 'a', amount: 4 }, { amount: 5 }] },
        calls: { ann: refund('a'), bob: take(10) },
      }))
  })

  describe('a reservation', () => {
    const held = { entries: [{ id: 'h', amount: 5, expires: 1_000 }, { amount: 4 }] }
    const runOut = { entries: [{ id: 'h', amount: 5, expires: -1 }, { amount: 4 }] }

    it.each([
      ['settled against given back', settle('h', 3), giveBack('h')],
      ['given back twice', giveBack('h'), giveBack('h')],
      ['settled twice', settle('h', 3), settle('h', 3)],
      ['settled with one amount and another', settle('h', 3), settle('h', 4)],
      ['settled, and room for others', settle('h', 3), take(3)],
      ['given back, and room for others', giveBack('h'), take(6)],
      ['settled and refunded', settle('h', 3), refund('h')],
      ['made again', settle('h', 3), reserve(5, 'h')],
    ])('%s', (_, ann, bob) => expectAtomic({ start: held, calls: { ann, bob } }))

    atLeisure('is ended once by three', () =>
      expectAtomic({
        start: held,
        calls: { ann: settle('h', 3), bob: giveBack('h'), eve: take(3) },
      }),
    )

    it('that has run out is free for one of two', () =>
      expectAtomic({ start: runOut, calls: { ann: take(6), bob: take(5) } }))

    it('that has run out is free for one of two, or settled late', () =>
      expectAtomic({ start: runOut, calls: { ann: take(6), bob: settle('h', 2) } }))

    it('that has run out is settled late once', () =>
      expectAtomic({ start: runOut, calls: { ann: settle('h', 2), bob: settle('h', 2) } }))

    it('that has run out is settled late or given back', () =>
      expectAtomic({ start: runOut, calls: { ann: settle('h', 2), bob: giveBack('h') } }))

    it.each(hasTime ? (['take', 'overdraw', 'fail'] as const) : (['take'] as const))(
      'that runs out in between: %s',
      (ifLate) =>
        expectAtomic({
          start: held,
          ifLate,
          calls: { ann: settle('h', 5), bob: take(6), time: pass(1_000) },
        }),
    )

    it('of a window that is over is settled, while the next begins', () =>
      expectAtomic({
        start: { window: -WINDOW_MS, entries: held.entries },
        calls: { ann: settle('h', 5), bob: take(10) },
      }))
  })

  describe('maintenance', () => {
    const old = { window: LONG_AGO, entries: [{ amount: 10 }] }

    it('removes a row that is taken from', () =>
      expectAtomic({ start: old, calls: { ann: take(6), maintenance: maintain } }))

    atLeisure('removes a row that two take from', () =>
      expectAtomic({ start: old, calls: { ann: take(6), bob: take(5), maintenance: maintain } }),
    )

    it('removes an id that comes again', () =>
      expectAtomic({
        start: { window: LONG_AGO, entries: [{ id: 'a', amount: 6, forget: -1 }] },
        calls: { ann: take(6, 'a'), maintenance: maintain },
      }))

    it('removes an id of a window that is over, and whose row begins the next', () =>
      expectAtomic({
        start: { window: -WINDOW_MS, entries: [{ id: 'a', amount: 6, forget: -1 }] },
        calls: { ann: take(5), maintenance: maintain },
      }))

    it('removes an id that is refunded', () =>
      expectAtomic({
        start: { entries: [{ id: 'a', amount: 6, forget: -1 }, { amount: 3 }] },
        isStock: true,
        calls: { ann: refund('a'), maintenance: maintain },
      }))

    it('removes an id that is refunded and taken anew', () =>
      expectAtomic({
        start: { window: LONG_AGO, isForgotten: true, entries: [{ id: 'a', amount: 6, forget: -1 }] },
        calls: { ann: refund('a'), bob: take(6, 'a'), maintenance: maintain },
      }))

    atLeisure('removes an id that is refunded and taken anew, by another subject', () =>
      expectAtomic({
        start: { window: LONG_AGO, entries: [{ id: 'a', amount: 6, forget: -1 }] },
        calls: { ann: refund('a'), bob: take(6, 'a', 'bob'), maintenance: maintain },
      }),
    )

    it('removes a row whose reservation is settled late', () =>
      expectAtomic({
        start: { window: LONG_AGO, entries: [{ id: 'h', amount: 6, expires: -1 }] },
        calls: { ann: settle('h', 5), maintenance: maintain },
      }))

    it('removes a reservation that is settled late', () =>
      expectAtomic({
        start: { window: LONG_AGO, entries: [{ id: 'h', amount: 6, expires: -1, forget: -1 }] },
        calls: { ann: settle('h', 5), maintenance: maintain },
      }))

    atLeisure('removes a reservation of a stock that has run out, and leaves its place', () =>
      expectAtomic({
        start: { entries: [{ id: 'h', amount: 6, expires: -1, forget: -1 }] },
        isStock: true,
        calls: { ann: take(6), maintenance: maintain, bob: giveBack('h') },
      }),
    )

    atLeisure('is done by two at once', () =>
      expectAtomic({
        start: {
          entries: [
            { id: 'a', amount: 6, forget: -1 },
            { id: 'h', amount: 2, expires: -1, forget: -1 },
          ],
        },
        isStock: true,
        calls: { ann: maintain, bob: maintain, eve: take(3) },
      }),
    )

    const gone = { window: LONG_AGO, isForgotten: true, entries: [{ id: 'h', amount: 6, expires: -1 }] }
    it.each([
      ['settled late by two', settle('h', 5), settle('h', 5)],
      ['settled late, and refunded', settle('h', 5), refund('h')],
      ['settled late, while others take', settle('h', 5), take(6)],
      ['settled late, or given back', settle('h', 5), giveBack('h')],
    ])('has removed a row: %s', (_, ann, bob) => expectAtomic({ start: gone, calls: { ann, bob } }))
  })

  describe('in transactions', () => {
    it('what is rolled back was not taken', () =>
      expectAtomic({ start: used(5), calls: { ann: joined(take(4), { isUndone: true }), bob: take(4) } }))

    it('what is rolled back was not there, nor its id', () =>
      expectAtomic({
        start: none,
        calls: { ann: joined(take(6, 'a'), { isUndone: true }), bob: take(6, 'a') },
      }))

    atLeisure('what is rolled back was not there', () =>
      expectAtomic({
        start: none,
        calls: { ann: joined(take(6, 'a'), { isUndone: true }), bob: take(6, 'a'), eve: joined(take(5)) },
      }),
    )

    it('what is rolled back was not ended', () =>
      expectAtomic({
        start: { entries: [{ id: 'h', amount: 5, expires: 1_000 }] },
        calls: { ann: joined(settle('h', 5), { isUndone: true }), bob: giveBack('h') },
      }))

    const levels = [
      'read committed',
      'serializable',
      ...(hasTime ? (['repeatable read'] as const) : []),
    ] as const
    describe.each(levels)('at %s', (isolation) => {
      it.each([
        ['on a row that is missing', none, take(6), take(5)],
        ['at the edge', used(8), take(2), take(1)],
        ['under one id', used(2), take(6, 'a'), take(6, 'a')],
        [
          'with a reservation that has run out',
          { entries: [{ id: 'h', amount: 6, expires: -1 }] },
          take(6),
          settle('h', 5),
        ],
        [
          'with a reservation that is ended',
          { entries: [{ id: 'h', amount: 6, expires: 5 }] },
          giveBack('h'),
          settle('h', 5),
        ],
      ])('beside a call alone, %s', (_, start, ours, theirs) =>
        expectAtomic({ start, calls: { ann: joined(ours, { isolation }), bob: theirs } }),
      )

      it('beside another', () =>
        expectAtomic({
          start: used(3),
          calls: { ann: joined(take(6), { isolation }), bob: joined(take(5), { isolation }) },
        }))
    })
  })
}
