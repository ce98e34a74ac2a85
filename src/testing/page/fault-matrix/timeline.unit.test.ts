import { describe, expect, it } from 'vitest'
import { answered, madeLine, madePoint } from '../../../../test/made-crash.js'
import type { StoryLine } from '../../crash/story.js'
import { chooseTimelines } from './choose-timelines.js'
import { baselineOf, foldRepeats } from './fold-repeats.js'
import { layOutTimeline } from './timeline-layout.js'

const run = Array.from({ length: 9 }, (_, i) => madeLine('run', i + 1, `select ${i + 1}`))
const killed: StoryLine = { kind: 'event', text: 'the process is killed', isFault: true }
const usual = baselineOf(run)

const shown = (story: readonly StoryLine[]) =>
  foldRepeats(story, usual).map((line) =>
    line.kind === 'folded'
      ? `${line.who} ${line.from}-${line.to} as ${line.as}`
      : line.kind === 'statement'
        ? `${line.who} ${line.number}`
        : line.text,
  )

describe('a story', () => {
  it('folds what went as ever, up to what differs', () => {
    expect(shown([...run.slice(0, 7), killed])).toEqual([
      'run 1',
      'run 2-5 as 2',
      'run 6',
      'run 7',
      'the process is killed',
    ])
  })

  it('folds a recovery that goes on where the run was', () => {
    const rest = run.slice(3).map((line, i) => ({ ...line, who: 'recovery 1', number: i + 1 }))
    expect(shown([killed, ...rest])).toEqual([
      'the process is killed',
      'recovery 1 1',
      'recovery 1 2-4 as 5',
      'recovery 1 5',
      'recovery 1 6',
    ])
  })

  it('keeps what is short, and whatever got another answer, had other values or waited', () => {
    expect(shown(run.slice(0, 5))).toHaveLength(5)
    for (const change of [
      { effect: answered('SELECT 1', ['pending']) },
      { values: ['2'] },
      { waitedFor: ['run'] },
      { who: 'run/2' },
    ])
      expect(shown(run.map((line, i) => (i === 4 ? { ...line, ...change } : line)))).toHaveLength(9)
  })

  it('folds nothing over the border between two recoveries', () => {
    const twice = [1, 2].flatMap((n) => run.slice(0, 5).map((line) => ({ ...line, who: `recovery ${n}` })))
    expect(shown(twice)).toHaveLength(10)
  })

  it('has a head wherever another instance goes on, and keeps the rail of one that comes back', () => {
    const story = [
      madeLine('run', 1, 'a'),
      killed,
      madeLine('recovery 1', 1, 'b'),
      madeLine('run', 2, 'c'),
      madeLine('recovery 2', 1, 'd'),
    ]
    expect(layOutTimeline(story).map(({ kind, owner, rails }) => [kind, owner, ...rails])).toEqual([
      ['head', 'run', 'on', undefined],
      ['statement', 'run', 'on', undefined],
      ['fault', 'run', 'on', undefined],
      ['head', 'recovery 1', 'gap', 'on'],
      ['statement', 'recovery 1', 'gap', 'on'],
      ['head', 'run', 'on', undefined],
      ['statement', 'run', 'on', undefined],
      ['head', 'recovery 2', undefined, 'on'],
      ['statement', 'recovery 2', undefined, 'on'],
    ])
  })
})

describe('the stories of a page', () => {
  const long = Array.from({ length: 300 }, (_, i) =>
    madeLine('recovery 1', i + 1, `select ${'x'.repeat(200)}`),
  )
  const failure = { kind: 'invariant', message: 'no' } as const

  it('are all there if they are few', () => {
    const points = [madePoint('none', run), madePoint('crash:after-1', run), madePoint('crash:after-2', run)]
    expect([...chooseTimelines(points).keys()]).toEqual(points)
  })

  it('are, of many, first one of each failure, then some that went right, whatever fails', () => {
    const points = Array.from({ length: 200 }, (_, i) =>
      madePoint(`crash:after-${i + 1}`, long, i % 2 === 0 ? { failure } : {}),
    )
    const last = madePoint('zombie:after-9', long, { failure: { ...failure, message: 'else' } })
    const all = [madePoint('none', run), ...points, last]
    const told = chooseTimelines(all)
    expect(told.size).toBeLessThan(40)
    expect(told.has(last)).toBe(true)
    expect([...told.keys()].filter(({ verdict }) => verdict === 'passed').length).toBeGreaterThan(3)
  })
})
