import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { twoActors } from '../../../../test/generated-programs.js'
import type { Program } from '../../../../test/programs.js'
import { corpus, schema } from '../../../../test/reduction-corpus.js'
import { checkGenerated, exploringAt, sorted } from '../../../../test/self-check.js'
import { DEPENDENT_PAIRS } from './dependence.js'

const { url } = exploredSchema(schema)
const { all, reduced } = exploringAt(url)

// The same programs each time; `npm run soak` draws others.
it('programs that nobody thought of end in the same ways', { timeout: 120_000 }, () =>
  checkGenerated(url, twoActors, { numRuns: 8, seed: 5 }),
)

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
  'rows put into a table whose order somebody sees': 'rows taken as they lie',
  'two times that somebody looks at': 'times of transactions, compared',
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
