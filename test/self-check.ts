import fc from 'fast-check'
import { expect } from 'vitest'
import type { DependenceRule } from '../src/testing/explore/reduce/dependence.js'
import { type Explored, exploreProgram, type Program } from './programs.js'
import { tables } from './reduction-corpus.js'

/** The two ways to explore a program: in every order, and with reduction. */
export const exploringAt = (url: string) => ({
  all: (program: Program): Promise<Explored> => exploreProgram(program, { url, tables, everyOrder: true }),
  reduced: (program: Program, rules?: readonly DependenceRule[]): Promise<Explored> =>
    exploreProgram(program, { url, tables, everyOrder: false, ...(rules ? { rules } : {}) }),
})

export const sorted = (ends: ReadonlySet<string>): string[] => [...ends].toSorted()

/** Checks that generated programs end in the same ways with and without reduction, and that enough of them have several ends. */
export async function checkGenerated(
  url: string,
  programs: fc.Arbitrary<Program>,
  parameters: fc.Parameters<[Program]> & { numRuns: number },
): Promise<void> {
  const { all, reduced } = exploringAt(url)
  let withSeveralEnds = 0
  let smaller = 0
  const property = fc.asyncProperty(programs, async (program) => {
    const whole = await all(program)
    const part = await reduced(program)
    expect(whole.report.isComplete && part.report.isComplete).toBe(true)
    expect(sorted(part.ends)).toEqual(sorted(whole.ends))
    withSeveralEnds += Number(whole.hasWaits && whole.ends.size > 1)
    smaller += Number(part.report.schedules < whole.report.schedules)
  })
  await fc.assert(property, parameters)
  expect(withSeveralEnds).toBeGreaterThanOrEqual(parameters.numRuns / 2)
  expect(smaller).toBeGreaterThanOrEqual(parameters.numRuns / 2)
}
