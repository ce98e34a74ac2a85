import { describe, expect, it } from 'vitest'
import { exploredSchema } from '../../../../test/explored-schema.js'
import { twoActors } from '../../../../test/generated-programs.js'
import type { Program } from '../../../../test/programs.js'
import { corpus, schema } from '../../../../test/reduction-corpus.js'
import { checkGenerated, exploringAt, sorted } from '../../../../test/self-check.js'
import { DEPENDENCE_RULES } from './dependence.js'

const { url } = exploredSchema(schema)
const { all, reduced } = exploringAt(url)

// The seed is fixed, so the programs are the same each time. `npm run soak` generates others.
it('generated programs end in the same ways with and without reduction', { timeout: 120_000 }, () =>
  checkGenerated(url, twoActors, { numRuns: 8, seed: 5 }),
)

/** By the rule: a program that ends in fewer ways if the search does not know the rule. */
const programs: Readonly<Record<string, string>> = {
  'a step that may do anything': 'a trigger that looks elsewhere',
  'a read, and the commit of what it reads': 'a counter, read and written',
  'a search for a row by its key, and the commit that inserts it':
    'a row found by key that was added and not committed',
  'a lock, and a lock': 'the same key twice',
  'an attempt to lock without a wait, and a step that may release the lock':
    'skip locked, and one who rolls back',
  'two steps that close a cycle of waits': 'two updates in opposite order',
  'two numbers of one sequence': 'numbers of a sequence, told apart',
  'row versions of a table whose physical order is read': 'rows taken as they lie',
  'two times that some statement reads': 'times of transactions, compared',
  'the snapshot of a transaction, and a commit': 'repeatable read: what was committed before it is read',
}

describe('the search needs every rule', () => {
  it.each(DEPENDENCE_RULES)('$name', { timeout: 60_000 }, async ({ name }) => {
    const program = corpus[programs[name] ?? ''] as Program
    const without = DEPENDENCE_RULES.filter((rule) => rule.name !== name)
    const whole = await all(program)
    const part = await reduced(program, without)
    expect(sorted(part.ends)).not.toEqual(sorted(whole.ends))
  })
})
