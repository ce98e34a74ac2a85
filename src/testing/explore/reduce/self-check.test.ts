import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { anyProgram } from '../../../../test/generated-programs.js'
import { exploreProgram, type Program } from '../../../../test/programs.js'
import { corpus, schema, tables } from '../../../../test/reduction-corpus.js'
import { DEPENDENT_PAIRS } from './dependence.js'

const { url } = exploredSchema(schema)

const all = (program: Program) => exploreProgram(program, { url, tables, everyOrder: true })
const reduced = (program: Program, pairs = DEPENDENT_PAIRS) =>
  exploreProgram(program, { url, tables, everyOrder: false, pairs })

const sorted = (ends: ReadonlySet<string>): string[] => [...ends].toSorted()

describe('a reduced search reaches every end that the whole one reaches', () => {
  it.each(Object.entries(corpus))('%s', { timeout: 60_000 }, async (_name, program) => {
    const whole = await all(program)
    const part = await reduced(program)
    expect(whole.report.isComplete, whole.report.summary).toBe(true)
    expect(part.report.isComplete, part.report.summary).toBe(true)
    expect(sorted(part.ends)).toEqual(sorted(whole.ends))
  })

  it('programs that nobody thought of', { timeout: 300_000 }, async () => {
    const runs = Number(process.env.SOAK_RUNS ?? 30)
    let telling = 0
    let smaller = 0
    const check = fc.asyncProperty(anyProgram, async (program) => {
      const whole = await all(program)
      const part = await reduced(program)
      expect(sorted(part.ends)).toEqual(sorted(whole.ends))
      telling += Number(whole.hasWaits && whole.ends.size > 1)
      smaller += Number(part.report.schedules < whole.report.schedules)
    })
    await fc.assert(check, {
      numRuns: runs,
      seed: Number(process.env.SEED ?? 5),
      endOnFailure: !process.env.SHRINK,
    })
    console.log({ telling, smaller, runs })
    expect(telling).toBeGreaterThanOrEqual(runs / 2)
    expect(smaller).toBeGreaterThanOrEqual(runs / 2)
  })
})

/** A program that ends in fewer ways if the search does not know of this kind of pairs. */
const betrayers: Readonly<Record<string, string>> = {
  'one that may do anything': 'a trigger that looks elsewhere',
  'a read, and the commit of what it reads': 'a counter, read and written',
  'a search for a row by its key, and the commit that adds it':
    'a row found by key that was added and not committed',
  'a lock, and a lock': 'the same key twice',
  'a look whether a lock is free, and whoever may free it': 'skip locked, and one who rolls back',
  'two that close a circle of waits': 'two updates in opposite order',
  'two numbers of one sequence': 'numbers of a sequence, told apart',
  'a lock of a table, and a use of it': 'a lock of a table, and a read',
  'rows put into a table whose order somebody sees': 'rows taken as they lie',
  'the snapshot of a transaction, and a commit': 'repeatable read: what was committed before it is read',
}

describe('every row of the table is needed', () => {
  it.each(DEPENDENT_PAIRS)('$name', { timeout: 60_000 }, async ({ name }) => {
    const program = corpus[betrayers[name] ?? ''] as Program
    const without = DEPENDENT_PAIRS.filter((pair) => pair.name !== name)
    const whole = await all(program)
    const part = await reduced(program, without)
    expect(sorted(part.ends)).not.toEqual(sorted(whole.ends))
  })
})
